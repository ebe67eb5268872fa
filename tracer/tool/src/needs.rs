//! What a compiled program needs of a kernel, held against what the kernel says that it has.
//!
//! # Invariants
//! NEEDS-1. A program that passes asks the kernel for nothing that it does not have, except where
//!     the program chooses at run time: a text is read in user memory only if its address is one of
//!     there, and a kernel without user memory has no such addresses.

use bpf::{
    AluOp, Helper, Insn, MapKind, Operand, Reg, USER_STACK,
    wire::{self, WireError},
};
use trace_interface::{Script, script::Attachment};
use trace_wire::stream::{Capabilities, Capability};

/// The first thing that a script needs and a kernel does not have.
///
/// # Errors
/// The script's instructions cannot be read.
pub fn missing(script: &Script, has: Capabilities) -> Result<Option<Capability>, WireError> {
    let mut needs = Vec::new();
    needs.extend(script.attachments.iter().filter_map(of_attachment));
    if script.maps.iter().any(|map| map.kind == MapKind::Ring) {
        needs.push(Capability::Records);
    }
    for program in &script.programs {
        needs.extend(of_program(&wire::decode(&program.code)?));
    }
    Ok(needs.into_iter().find(|need| !has.has(*need)))
}

/// What a person calls it, and what to do without it.
pub fn words(capability: Capability) -> (&'static str, &'static str) {
    match capability {
        Capability::Returns => (
            "probes at the return of functions",
            "probe entries: kprobe:FUNCTION",
        ),
        Capability::Records => (
            "records that come while a trace runs",
            "leave out printf, print and exit: all maps are shown at the end",
        ),
        Capability::Intervals => (
            "timers",
            "leave out `interval`; --duration ends a trace after a time",
        ),
        Capability::Profiles => ("profiles", "leave out `profile`"),
        Capability::KernelStacks => ("call stacks of the kernel", "leave out `kstack`"),
        Capability::UserStacks => ("call stacks of programs in user mode", "leave out `ustack`"),
        Capability::UserMemory => (
            "memory of programs in user mode to read",
            "leave out `uptr` and `buf` of such memory",
        ),
        Capability::UserProbes => (
            "probes in programs of user mode",
            "probe functions of the kernel: kprobe:FUNCTION",
        ),
        Capability::Tasks => (
            "tasks with numbers and names",
            "leave out `pid`, `tid` and `comm`; `cpu` says where a hit was",
        ),
    }
}

fn of_attachment(attachment: &Attachment) -> Option<Capability> {
    match attachment {
        Attachment::Call { .. } => Some(Capability::Returns),
        Attachment::Interval { .. } => Some(Capability::Intervals),
        Attachment::Profile { .. } => Some(Capability::Profiles),
        Attachment::User { .. } => Some(Capability::UserProbes),
        Attachment::Probe { .. }
        // The kernel says which memory it can watch, by address.
        | Attachment::Watch { .. }
        | Attachment::Source { .. }
        | Attachment::Begin { .. }
        | Attachment::End { .. } => None,
    }
}

fn of_program(insns: &[Insn]) -> Vec<Capability> {
    let mut needs = Vec::new();
    // The constant in the third argument's register.
    let mut third = None;
    let mut before = None;
    for insn in insns {
        if let Insn::Call { helper } = insn {
            // The other arm of a choice between the kernel's memory and a program's (NEEDS-1).
            let is_choice = matches!(before, Some(Insn::Jump { .. }));
            needs.extend(match helper {
                Helper::StackId if third == Some(USER_STACK as i32) => Some(Capability::UserStacks),
                Helper::StackId | Helper::RecordStack => Some(Capability::KernelStacks),
                Helper::ReadUser
                | Helper::ReadUserPart
                | Helper::ReadUserStr
                | Helper::UserStrLen
                | Helper::AppendUserStr
                    if !is_choice =>
                {
                    Some(Capability::UserMemory)
                }
                Helper::CanRead if third != Some(0) => Some(Capability::UserMemory),
                Helper::PidTgid | Helper::Comm => Some(Capability::Tasks),
                _ => None,
            });
        }
        if let Insn::Alu {
            op: AluOp::Mov,
            dst: Reg::R3,
            operand,
            ..
        } = insn
        {
            third = match operand {
                Operand::Imm(value) => Some(*value),
                Operand::Reg(_) => None,
            };
        }
        before = Some(*insn);
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_compiler::{Options, compile};
    use trace_interface::symbols::{
        Function, Kernel, ProbePlace, Type, TypeId, Unavailable, Variable,
    };

    /// A kernel of one function without debug information.
    struct Bare;

    fn nothing<T>() -> Result<T, Unavailable> {
        let (reason, help) = ("there is nothing".into(), String::new());
        Err(Unavailable { reason, help })
    }

    impl Kernel for Bare {
        fn functions(&self, _: &str) -> Vec<Function> {
            let name = || "f".into();
            let (path, symbol, address, bytes) = (name(), name(), 1 << 20, 16);
            vec![Function {
                path,
                symbol,
                address,
                bytes,
            }]
        }
        fn inlined(&self, _: &str) -> Vec<u64> {
            Vec::new()
        }
        fn line(&self, _: &str, _: u32) -> Result<Vec<u64>, Unavailable> {
            nothing()
        }
        fn variables(&self, _: ProbePlace) -> Vec<String> {
            Vec::new()
        }
        fn variable(&self, _: ProbePlace, _: &str) -> Result<Variable, Unavailable> {
            nothing()
        }
        fn returned(&self, _: u64) -> Result<Variable, Unavailable> {
            nothing()
        }
        fn describe(&self, _: TypeId) -> std::rc::Rc<Type> {
            std::rc::Rc::new(Type::Unit)
        }
        fn global(&self, _: &str) -> Result<Variable, Unavailable> {
            nothing()
        }
        fn nearest(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn each_capability_is_needed_by_what_uses_it_and_by_nothing_else() {
        use Capability::{
            Intervals, KernelStacks, Profiles, Records, Returns, Tasks, UserMemory, UserStacks,
        };
        for (text, needed) in [
            ("kprobe:f { @ = count(); }", &[][..]),
            ("kprobe:f { @[str(arg0)] = count(); }", &[]),
            ("kprobe:f { @[*(uint64*)arg0] = count(); }", &[]),
            ("kretprobe:f { @ = count(); }", &[Returns]),
            ("kprobe:f { printf(\"x\\n\"); }", &[Records]),
            ("interval:s:1 { @ = count(); }", &[Intervals]),
            ("profile:hz:99 { @ = count(); }", &[Profiles]),
            ("kprobe:f { @[kstack] = count(); }", &[KernelStacks]),
            ("kprobe:f { @[ustack] = count(); }", &[UserStacks]),
            (
                "kprobe:f { @[*(uint32*)uptr(arg0)] = count(); }",
                &[UserMemory],
            ),
            ("kprobe:f { @[pid] = count(); }", &[Tasks]),
            ("kprobe:f { @[comm] = count(); }", &[Tasks]),
        ] {
            let tree = trace_language::parse(text).unwrap();
            let options = Options {
                debug_info: false,
                ..Options::default()
            };
            let compiled = compile(&tree, &Bare, &options).unwrap();
            for absent in Capability::ALL {
                let others = Capability::ALL.into_iter().filter(|other| *other != absent);
                let has = Capabilities::of(&others.collect::<Vec<_>>());
                let wanted = needed.contains(&absent).then_some(absent);
                let found = missing(&compiled.script, has).unwrap();
                assert_eq!(found, wanted, "{text} without {}", absent.word());
            }
        }
    }
}
