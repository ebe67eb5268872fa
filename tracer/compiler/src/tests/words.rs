//! Words that the kernel names: they mean the same at every place.

use std::{fs, path::Path, rc::Rc};

use bpf::context::Register::Di;

use super::{
    fake::{Fake, compiled_with},
    values::{INODE_AT, with_file},
    world::{Hit, World},
};
use crate::{EventTable, Options};

const TICKS_AT: u64 = 0xffff_8000_0010_0000;

const LINES: &str = "ticks\tword\tkernel::TICKS\n\
                     file\tword\t(File*)ticks\n\
                     links\tword\t(uint32)file.inode.links\n";

fn options(lines: &str) -> Options {
    Options {
        events: Rc::new(EventTable::parse(lines.lines()).unwrap()),
        ..Options::default()
    }
}

fn refusal(text: &str, lines: &str) -> String {
    let error = compiled_with(text, &Fake::new(), &options(lines));
    error.err().expect("it is refused")
}

/// A `File` with an inode, whose address is in the static of the kernel; the program's is 7.
fn world(text: &str) -> World {
    let mut world = World::of(compiled_with(text, &Fake::new(), &options(LINES)).unwrap());
    let memory = with_file("begin { }", "name").memory.clone();
    let (file, _) = &memory[0];
    world.memory.push((TICKS_AT, file.to_le_bytes().to_vec()));
    world.memory.extend(memory);
    world.user.push((TICKS_AT, 7_u64.to_le_bytes().to_vec()));
    world
}

#[test]
fn a_word_is_what_its_expression_is() {
    let mut world = world(
        "kprobe:vfs_write { print((ticks == (uint64)file, file.inode.number, links, links())); \
         @[links] = count(); $f = file; print($f.pos); }",
    );
    world.hit(&Hit::default());
    assert_eq!(world.out, "(true, 42, 3, 3)\n-5\n");
    assert!(world.maps().contains("@[3]: 1\n"));
}

/// In a program the kernel's static is meant, not the program's of that name.
#[test]
fn a_word_is_the_kernels_at_places_in_programs() {
    let mut world = world("uprobe:/bin/cat:vfs_write { print((kernel::TICKS, links, file.pos)); }");
    world.hit_in_program(
        "/bin/cat",
        &Hit {
            registers: vec![(Di, INODE_AT)],
            ..Hit::default()
        },
    );
    assert_eq!(world.out, "(7, 3, -5)\n");
}

/// `count` is an argument of `vfs_write`, and `file`, too.
#[test]
fn a_word_sees_no_arguments_and_stands_before_variables_of_the_source() {
    let mut world = world("kprobe:vfs_write { print(file.pos); }");
    world.hit(&Hit::default());
    assert_eq!(world.out, "-5\n");
    for expression in ["count", "args.count", "arg0", "func", "retval"] {
        let lines = format!("mine\tword\t{expression}");
        let error = refusal("kprobe:vfs_write { print(mine); }", &lines);
        assert!(
            error.starts_with("error: `mine`, a word of this kernel: "),
            "{error}"
        );
        assert!(
            error.contains("{ print(mine); }\n  |                          ^^^^"),
            "{error}"
        );
    }
}

/// So none can mean itself.
#[test]
fn a_word_sees_the_words_before_it() {
    let lines = "one\tword\ttwo + 1\ntwo\tword\t2\n";
    assert!(refusal("begin { print(one); }", lines).contains("nothing is called `two`"));
    assert!(refusal("begin { print(a); }", "a\tword\ta").contains("nothing is called `a`"));
    let lines = "two\tword\t2\none\tword\ttwo - 1\n";
    let text = "kprobe:vfs_write { print((two, one)); }";
    let mut world = World::of(compiled_with(text, &Fake::new(), &options(lines)).unwrap());
    world.hit(&Hit::default());
    assert_eq!(world.out, "(2, 1)\n");
}

#[test]
fn words_are_near_names() {
    let error = refusal("begin { print(tiks); }", LINES);
    assert!(error.contains("did you mean `ticks`?"), "{error}");
}

#[test]
fn lines_that_are_no_words_are_refused() {
    for line in [
        "a\tword",
        "a\tword\t",
        "a\tword\t1 +",
        "a\tword\t1; 2",
        "a\tword\t$x",
        "a\tword\t@x",
        "a\tword\t{ 1 }",
        "a b\tword\t1",
        "1a\tword\t1",
        "\tword\t1",
        "pid\tword\t1",
        "ticks\tword\t1",
        "a\twords\t1",
    ] {
        let lines = format!("{LINES}{line}");
        let error = EventTable::parse(lines.lines()).expect_err(line);
        assert!(
            error.to_string().contains(&format!("`{line}` is")),
            "{line}"
        );
    }
}

#[test]
fn the_lines_of_the_document_are_taken() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tracing.md");
    let document = fs::read_to_string(path).unwrap();
    let (_, after) = document
        .split_once("use the words before it:\n\n```text\n")
        .unwrap();
    let (lines, _) = after.split_once("```").unwrap();
    let table = EventTable::parse(lines.lines()).unwrap();
    assert_eq!(table.lines(), lines);
    assert_eq!(Vec::from_iter(table.words()), ["curtask", "ppid"]);
}
