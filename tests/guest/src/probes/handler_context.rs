//! A handler cannot wait, whatever kind it is, however its probe is hit, and whether or not its
//! interrupts are on: the kernel says so, and a page that a program has not touched yet is not
//! brought in for it.

use crate::tools::jumps::{Optimization, byte_at};
use alloc::{boxed::Box, sync::Arc};
use core::{
    arch::naked_asm,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::percpu,
    errno::Errno,
    mm::{
        paging::Protection,
        uaccess::{copy_from_user, copy_to_user},
        user_space::{USER_START, UserSpace},
    },
    probes::{
        EntryVerdict, FaultVerdict, Jprobe, Kprobe, Kretprobe, KretprobeInstance, Owner,
        PreVerdict, PtRegs, ReturnMethod, StepMethod, jprobe, register,
    },
    task::{self, kthread::spawn_kthread},
};

/// Reads the word at `at` by its instruction at +0, and adds one to it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn visited(at: *const u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, [rdi]",     // +0
        "lea rax, [rax + 1]", // +3
        "nop",
        "ret",
        ".cfi_endproc",
    )
}

/// No address.
const NOWHERE: *const u64 = (1_u64 << 63) as *const u64;

const PAGE: u64 = 4096;
/// A page that the program has touched.
static PRESENT: AtomicU64 = AtomicU64::new(0);
/// One that it has not.
static ABSENT: AtomicU64 = AtomicU64::new(0);
/// How many handlers have looked, and a bit for each thing that was not as it should be.
static LOOKS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
/// The handlers that ran with interrupts on.
static INTERRUPTIBLE: AtomicU64 = AtomicU64::new(0);

fn look() {
    LOOKS.fetch_add(1, SeqCst);
    let interrupts = x86_64::instructions::interrupts::are_enabled();
    INTERRUPTIBLE.fetch_add(interrupts.into(), SeqCst);
    let (present, absent) = (PRESENT.load(SeqCst), ABSENT.load(SeqCst));
    let wrong = [
        percpu::preemptible(),
        task::may_sleep(),
        copy_from_user(&mut [0; 8], present) != Ok(()),
        copy_from_user(&mut [0; 8], absent) != Err(Errno::EFAULT),
        copy_to_user(absent, &[0; 8]) != Err(Errno::EFAULT),
    ];
    for (bit, is_wrong) in wrong.into_iter().enumerate() {
        WRONG.fetch_or(u64::from(is_wrong) << bit, SeqCst);
    }
}

fn before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    look();
    PreVerdict::Execute
}

fn behind(_: &Kprobe, _: &mut PtRegs, _: u64) {
    look();
}

/// Passes over the instruction, as if it had read 6.
fn at_fault(_: &Kprobe, regs: &mut PtRegs, _: u8) -> FaultVerdict {
    look();
    regs.ax = 6;
    regs.ip += 3;
    FaultVerdict::Handled
}

fn at_entry(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) -> EntryVerdict {
    look();
    EntryVerdict::Track
}

fn at_return(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {
    look();
}

jprobe! {
    fn in_its_place(_at: *const u64) {
        look();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Handler {
    Pre,
    Post,
    Fault,
    Entry,
    Return,
    Jprobe,
}

/// How a hit comes to the handlers, or a call back to them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Breakpoint,
    Jump,
    Step,
    Historic(ReturnMethod),
}

impl Way {
    fn return_method(self) -> ReturnMethod {
        match self {
            Self::Historic(method) => method,
            _ => ReturnMethod::Asm,
        }
    }
}

/// Registers `probe`, calls [`visited`] once, and says whether the probe was a jump.
fn visit(probe: impl Owner, at: *const u64) -> bool {
    let probe = register(probe).unwrap();
    let is_jump = byte_at(visited as *const () as u64) == 0xe9;
    assert_eq!(visited(black_box(at)), 7);
    drop(probe);
    is_jump
}

/// Runs one handler. Returns whether a jump led to it.
fn run(handler: Handler, way: Way) -> bool {
    let _knob = Optimization::set(way == Way::Jump);
    // The first probe at an address chooses how its instruction is executed.
    let stepped = Kprobe::new()
        .symbol("visited")
        .step_method(StepMethod::TrapFlag);
    let _stepped = (way == Way::Step).then(|| register(Box::new(stepped)).unwrap());
    let historic = Kretprobe::<u64>::new()
        .symbol("visited")
        .return_method(way.return_method());
    let _historic = matches!(way, Way::Historic(_)).then(|| register(Box::new(historic)).unwrap());
    let kprobe = Kprobe::new().symbol("visited");
    let kretprobe = Kretprobe::new()
        .symbol("visited")
        .return_method(way.return_method());
    let (six, nowhere) = (&6, black_box(NOWHERE));
    match handler {
        Handler::Pre => visit(Box::new(kprobe.pre(before)), six),
        Handler::Post => visit(Box::new(kprobe.post(behind)), six),
        Handler::Fault => visit(Box::new(kprobe.fault(at_fault)), nowhere),
        Handler::Entry => visit(Box::new(kretprobe.entry(at_entry)), six),
        Handler::Return => visit(Box::new(kretprobe.handler(at_return)), six),
        Handler::Jprobe => visit(
            Box::new(Jprobe::new().symbol("visited").entry(in_its_place)),
            six,
        ),
    }
}

#[guest_test]
fn no_handler_waits_for_a_page_or_is_told_that_it_may() {
    let body = || {
        let pages = PAGE * 64;
        let space = UserSpace::new().unwrap();
        space
            .add_region(USER_START..USER_START + pages, Protection::ReadWrite)
            .unwrap();
        drop(task::current().set_user_space(Some(Arc::new(space))));
        let mut untouched = (USER_START..USER_START + pages).step_by(PAGE as usize);
        let present = untouched.next().unwrap();
        PRESENT.store(present, SeqCst);
        assert_eq!(
            copy_to_user(present, &[1; 8]),
            Ok(()),
            "a task may wait for the page"
        );
        let historic = [ReturnMethod::Trap3, ReturnMethod::Trap4].map(Way::Historic);
        let ways = [Way::Breakpoint, Way::Jump, Way::Step]
            .into_iter()
            .chain(historic);
        for way in ways {
            for handler in [
                Handler::Pre,
                Handler::Post,
                Handler::Fault,
                Handler::Entry,
                Handler::Return,
                Handler::Jprobe,
            ] {
                ABSENT.store(untouched.next().unwrap(), SeqCst);
                for counter in [&LOOKS, &WRONG, &INTERRUPTIBLE] {
                    counter.store(0, SeqCst);
                }
                let by_jump = run(handler, way);
                let what = (handler, way);
                assert_eq!((LOOKS.load(SeqCst), WRONG.load(SeqCst)), (1, 0), "{what:?}");
                // The cases in which the interrupt flag alone would not tell.
                let keeps_breakpoint = matches!(handler, Handler::Post | Handler::Jprobe);
                assert_eq!(by_jump, way == Way::Jump && !keeps_breakpoint, "{what:?}");
                let interruptible = match handler {
                    Handler::Pre | Handler::Entry => way == Way::Jump,
                    Handler::Return => !matches!(way, Way::Historic(_)),
                    Handler::Post | Handler::Fault | Handler::Jprobe => false,
                };
                assert_eq!(INTERRUPTIBLE.load(SeqCst), interruptible.into(), "{what:?}");
                assert!(percpu::preemptible() && task::may_sleep());
                // The page was there to be had.
                assert_eq!(
                    copy_from_user(&mut [0; 8], ABSENT.load(SeqCst)),
                    Ok(()),
                    "{what:?}"
                );
            }
        }
        drop(task::current().set_user_space(None));
    };
    spawn_kthread("user memory", body).unwrap().wait_released();
}
