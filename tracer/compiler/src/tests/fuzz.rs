//! Random programs: the verifier takes each one that compiles, and each one runs to its end.
//!
//! A program has a seed of its own, so one that fails fails again by its number. Programs may be
//! refused, but never for a reason that only the compiler knows.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use super::{
    arithmetic::{Random, expression, hit},
    fake::{Fake, compiled_with},
    world::World,
};
use crate::Options;

/// Assigns to each map that programs read, so that none is without a type.
const ASSIGNED: &str = " kprobe:vfs_read { @c0 = count(); @sum = sum(1); @min = min(1); \
     @avg = avg(1); @maxk[tid] = max(1); @avgk[tid] = avg(1); @sumk[tid] = sum(1); \
     @histk[tid] = hist(1); @l[cpu] = lhist(1, -10, 1000, 7); @plain[1] = 1; @one = 1; } \
     end { for ($kv : @plain) { @one += $kv.1; for ($max : @maxk) { if ($max.1 > $kv.0) { break; } \
     delete(@maxk[$max.0]); } } }";

/// A program's statements, in which names of all kinds are used.
struct Writer<'r> {
    random: &'r mut Random,
    arguments: [u64; 6],
    variables: usize,
    loops: u32,
    /// How many more loops may be made whose ends the text does not tell. The verifier walks each
    /// of them for long.
    open_loops: u32,
}

impl Writer<'_> {
    fn number(&mut self) -> String {
        match self.random.below(8) {
            0 if self.variables > 0 => {
                format!("$v{}", self.random.below(self.variables as u64))
            }
            1 => self
                .random
                .of(&[
                    "pid",
                    "tid",
                    "cpu",
                    "nsecs",
                    "elapsed",
                    "@plain[1]",
                    "@one",
                    "@c0",
                    "@sum",
                    "@min",
                    "@avg",
                    "@maxk[tid]",
                    "@avgk[3]",
                    "has_key(@sumk, 7)",
                    "has_key(@plain, 2)",
                ])
                .into(),
            2 => self
                .random
                .of(&[
                    "args.file.inode.number",
                    "args.file.pos",
                    "args.count",
                    "args.buffer.len",
                    "args.buffer[2]",
                    "args.words[arg1]",
                    "args.shape.Circle",
                    "args.shape.Box.height",
                    "args.inode.Some.links",
                    "*(int16*)uptr(arg1)",
                    "len(kstack)",
                    "len(args.buffer)",
                    "((&File)uptr(arg0)).pos",
                ])
                .into(),
            _ => {
                let height = 1 + self.random.below(3) as u32;
                expression(self.random, &self.arguments, height).text
            }
        }
    }

    fn key(&mut self) -> String {
        match self.random.below(3) {
            0 => self
                .random
                .of(&[
                    "comm",
                    "func",
                    "probe",
                    "kstack",
                    "kstack(3)",
                    "ustack",
                    "args.shape",
                    "\"text\"",
                ])
                .into(),
            1 => self
                .random
                .of(&[
                    "args.file.mode",
                    "args.file.name",
                    "args.inode",
                    "str(arg0, 20)",
                    "str(arg0, arg1)",
                    "buf(uptr(arg0), arg1)",
                    "args.partial",
                    "(1, comm)",
                ])
                .into(),
            _ => self.number(),
        }
    }

    fn statement(&mut self, depth: u32) -> String {
        let kinds = if depth == 0 { 12 } else { 18 };
        let value = self.number();
        match self.random.below(kinds) {
            0 => format!("@c{} = count();", self.random.below(2)),
            1 => {
                let key = self.key();
                // A map for each text of a key: their types differ.
                format!("@k_{}[{key}] = count();", name_of(&key))
            }
            2 => {
                let function = self
                    .random
                    .of(&["sum", "min", "max", "avg", "stats", "hist"]);
                format!("@{function} = {function}({value});")
            }
            3 => {
                let function = self
                    .random
                    .of(&["sum", "min", "max", "avg", "stats", "hist"]);
                format!("@{function}k[tid] = {function}({value});")
            }
            4 if self.random.below(2) == 0 => format!("@f[cpu] = hist({value}, 3);"),
            4 => format!("@l[cpu] = lhist({value}, -10, 1000, 7);"),
            5 => {
                let key = self.key();
                let style = self.random.of(&["%s", "%r", "%-10s"]);
                format!("printf(\"{style} %d\\n\", {key}, {value});")
            }
            6 => format!("print({value});"),
            7 => format!("@plain[{}] = {value};", self.random.below(3)),
            8 => format!(
                "@one {} {value};",
                self.random.of(&["=", "+=", "-=", "*=", "|="])
            ),
            9 => self
                .random
                .of(&[
                    "delete(@plain[1]);",
                    "delete(@c0);",
                    "delete(@maxk[tid]);",
                    "clear(@histk[tid]);",
                    "zero(@plain[2]);",
                    "zero(@l[cpu]);",
                    "clear(@c0);",
                    "print(@plain);",
                    "@plain[2]++;",
                    "time();",
                    "print(args.shape);",
                    "print((comm, 1, nsecs));",
                    "join(arg1);",
                    "printf(\"%s %s\\n\", strftime(\"%H\", nsecs), ksym(arg1));",
                ])
                .into(),
            10 | 11 => {
                self.variables += 1;
                format!("$v{} = {value};", self.variables - 1)
            }
            12 | 13 => {
                // Variables that are made inside are not there outside.
                let condition = self.condition();
                let known = self.variables;
                let then = self.block(depth - 1);
                self.variables = known;
                let otherwise = self.block(depth - 1);
                self.variables = known;
                format!("if ({condition}) {{ {then} }} else {{ {otherwise} }}")
            }
            14 if self.loops < 2 => {
                self.loops += 1;
                let known = self.variables;
                let body = self.block(depth - 1);
                self.variables = known;
                self.loops -= 1;
                let turns = 1 + self.random.below(6);
                format!("for ($i : 0..{turns}) {{ {body} if ($i > {value}) {{ break; }} }}")
            }
            16 if self.loops == 0 && self.open_loops > 0 => {
                self.loops = 2;
                self.open_loops -= 1;
                let condition = self.condition();
                let to = self.number();
                let known = self.variables;
                let body = self.block(depth - 1);
                self.variables = known;
                self.loops = 0;
                let step = self.random.of(&["continue;", "break;", "@one++;"]);
                match self.random.below(2) {
                    0 => format!("while ({condition}) {{ {body} if ({value}) {{ {step} }} }}"),
                    _ => format!("for ($j : {value}..{to}) {{ {body} if ($j > 3) {{ {step} }} }}"),
                }
            }
            15 => {
                let known = self.variables;
                let body = self.block(depth - 1);
                self.variables = known;
                format!(
                    "match args.shape {{ Circle($r) => {{ print($r); {body} }} \
                     Box {{ width: $w }} => {{ @one = $w; }} _ => {{ @plain[0] = 1; }} }}"
                )
            }
            _ => {
                let condition = self.condition();
                let known = self.variables;
                let then = self.block(depth - 1);
                self.variables = known;
                format!("if ({condition}) {{ {then} return; }}")
            }
        }
    }

    fn condition(&mut self) -> String {
        match self.random.below(4) {
            0 => self
                .random
                .of(&[
                    "comm == \"cat\"",
                    "args.file.name != \"abc\"",
                    "args.shape.Circle",
                    "str(arg0) == str(arg1)",
                    "strncmp(comm, \"ca\", 2) == 0",
                    "args.file.name == comm",
                ])
                .into(),
            _ => self.number(),
        }
    }

    fn block(&mut self, depth: u32) -> String {
        let count = 1 + self.random.below(4);
        let statements: Vec<String> = (0..count).map(|_| self.statement(depth)).collect();
        statements.join(" ")
    }
}

fn name_of(key: &str) -> String {
    let letters = key.bytes().filter(u8::is_ascii_alphanumeric);
    letters.take(40).map(char::from).collect()
}

/// The fate of random programs.
#[derive(Default)]
struct Tried {
    good: usize,
    /// Those with loops whose ends the text does not tell.
    looped: usize,
    refused: Vec<String>,
}

impl Tried {
    /// Compiles the program of that number, and runs it.
    fn program(&mut self, number: u64) {
        let mut random = Random(2026 + number);
        let arguments = core::array::from_fn(|_| random.number());
        let mut writer = Writer {
            random: &mut random,
            arguments,
            variables: 0,
            loops: 0,
            open_loops: u32::from(number.is_multiple_of(5)),
        };
        let predicate = writer.condition();
        let body = writer.block(3);
        let (probe, ending) = match writer.random.below(3) {
            0 => ("kprobe:vfs_write", String::new()),
            1 => ("kretprobe:vfs_write", String::new()),
            _ => {
                let body = writer.block(2);
                (
                    "session:vfs_write",
                    format!(" return {{ {body} print(retval); }}"),
                )
            }
        };
        let text = format!("{probe} /{predicate}/ {{ {body} }}{ending}{ASSIGNED}");
        match compiled_with(&text, &Fake::new(), &Options::default()) {
            Ok(compiled) => {
                self.good += 1;
                self.looped += usize::from(text.contains("while (") || text.contains("for ($j"));
                // `World` verifies each program that it runs.
                let mut world = World::of(compiled);
                let at = hit(&arguments);
                world.hit(&at);
                world.call(&at, &at);
                world.tick();
                world.end();
            }
            Err(message) => {
                // Never for a reason of the compiler's own.
                for internal in ["verifier does not take: instruction", "no wire form"] {
                    assert!(!message.contains(internal), "{message}");
                }
                self.refused.push(message);
            }
        }
    }
}

#[test]
fn what_compiles_is_verified_and_ends() {
    const PROGRAMS: u64 = 500;
    let next = AtomicU64::new(0);
    let work = || {
        let mut tried = Tried::default();
        loop {
            match next.fetch_add(1, Relaxed) {
                number @ ..PROGRAMS => tried.program(number),
                _ => return tried,
            }
        }
    };
    let (mut good, mut looped, mut refused) = (0, 0, Vec::new());
    thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        for worker in workers {
            let tried = worker.join().expect("a program fails, see above");
            good += tried.good;
            looped += tried.looped;
            refused.extend(tried.refused);
        }
    });
    let examples = refused[..refused.len().min(40)].join("\n\n");
    assert!(good > 300, "{good} compiled; refused: {examples}");
    assert!(looped > 10, "{looped} with open loops; refused: {examples}");
}

#[test]
fn many_branches_are_not_too_many_paths() {
    let branches: String = (0..40)
        .map(|number| {
            format!(
                "if (arg0 == {number}) {{ $x = {number}; @a[\"k{number}\"] = count(); }} else {{ \
                 $x = 7; @b[{number}] = $x; }} "
            )
        })
        .collect();
    World::new(&format!("kprobe:vfs_write {{ {branches} print($x); }}"));
}
