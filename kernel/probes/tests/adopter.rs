//! A kernel that leaves to the crate all that it can: what the bodies of [`Platform`]'s methods do,
//! and what `kernel!` defines. Nothing is probed.

use std::{
    ops::Range,
    ptr::from_ref,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
};

use probes::{
    Code, Host, PerCpu, Platform, ProbeError, PtRegs, TaskLock, gates,
    insn::EntryFacts,
    platform::{SlotMemory, Symbol, Text},
};

struct Adopter;

/// What has to be asked before the probes.
struct Mender;

impl Mender {
    fn mend(&self, regs: &mut PtRegs) -> bool {
        regs.ip == 7
    }
}

static MENDER: Mender = Mender;

probes::kernel! {
    Adopter, PROBES, cs = 0x33, ss = 0x2b, gates = [1, 13, 14], clear_ac = "", mend = MENDER
}

static CPU: PerCpu = PerCpu::new();
static SLOTS: SlotMemory<8192> = SlotMemory::new();
/// The other mapping of the slots.
static ALIAS: SlotMemory<8192> = SlotMemory::new();

// SAFETY: clause by clause: 1. there is one CPU; 2. nothing is text; 3., 4. and 5. there is one
// task; 6. nothing executes slots; 7. no method of `Hits` is called.
unsafe impl Platform for Adopter {
    type RawMutex = TaskLock<Self>;

    fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
        (cpu == 0).then_some(&CPU)
    }

    fn slots() -> Range<u64> {
        SLOTS.range()
    }

    fn stack_of(_: u64) -> Range<u64> {
        0..0
    }

    fn alias(addr: u64) -> *mut u8 {
        let offset = addr - SLOTS.range().start;
        from_ref(&ALIAS)
            .cast::<u8>()
            .cast_mut()
            .wrapping_add(offset as usize)
    }

    fn pass_time() {
        thread::yield_now();
    }
}

/// Knows one function.
struct OneFunction;

impl Code for OneFunction {
    fn lookup(&self, name: &str) -> Result<u64, ProbeError> {
        let (given, hint) = (name.into(), "there is `f`".into());
        match name {
            "f" => Ok(0x1000),
            _ => Err(ProbeError::UnknownSymbol { name: given, hint }),
        }
    }

    fn symbol_at(&self, addr: u64) -> Option<Symbol> {
        (0x1000..0x1010).contains(&addr).then_some(Symbol {
            start: 0x1000,
            size: 0x10,
            text: Text::Kernel,
            exported: true,
            entry: EntryFacts::UNKNOWN,
        })
    }

    fn refused(&self, addr: u64) -> Option<&'static str> {
        (addr == 0x1008).then_some("a test asks for it")
    }
}

#[test]
fn slot_memory_gives_each_page_once_and_no_more() {
    let Range { start, end } = SLOTS.range();
    assert_eq!((start % 4096, end - start), (0, 8192));
    for (index, exec) in [(0, start), (1, start + 4096)] {
        let page = Adopter::slot_page(index).unwrap();
        assert_eq!((page.exec, page.alias), (exec, Adopter::alias(exec)));
    }
    assert!(Adopter::slot_page(2).is_none());
}

#[test]
fn text_is_written_through_its_alias() {
    let at = SLOTS.range().start + 4100;
    let read = |at: *const u8| {
        // SAFETY: a byte of one of the statics.
        unsafe { at.read_volatile() }
    };
    let before = read(at as *const u8);
    // SAFETY: nothing executes it.
    unsafe { Adopter::write_tail(at, [1, 2, 3, 4]) };
    assert_eq!(read(at as *const u8), before);
    let written = (0..4).map(|byte| read(Adopter::alias(at + byte)));
    assert_eq!(written.collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn what_the_registry_was_started_with_answers_about_code() {
    let early = Adopter::lookup_symbol("f");
    assert!(matches!(early, Err(ProbeError::NotReady)), "{early:?}");
    assert!(Adopter::symbol_at(0x1000).is_none());
    CPU.init(0);
    PROBES.init_table();
    probes::start::<Adopter>(OneFunction);
    assert_eq!(Adopter::lookup_symbol("f").unwrap(), 0x1000);
    assert!(Adopter::lookup_symbol("g").is_err());
    assert_eq!(Adopter::symbol_at(0x100f).unwrap().start, 0x1000);
    assert_eq!(Adopter::blacklisted(0x1008), Some("a test asks for it"));
    assert_eq!(Adopter::blacklisted(0x1000), None);
}

/// A kernel that says nothing of exception tables gets no jumps.
#[test]
fn any_instruction_may_fault_unless_a_kernel_says_otherwise() {
    assert!(Adopter::may_fault(0..1));
}

/// The first question about a fault goes to the static that `kernel!` was given. An address that no
/// memory can have is a protection fault.
#[test]
fn faults_are_offered_to_the_mender() {
    for (ip, is_theirs) in [(7, true), (8, false)] {
        let mut regs = PtRegs {
            ip,
            ..PtRegs::new()
        };
        assert_eq!(Adopter::mend(&mut regs), is_theirs);
    }
    for vector in [13, 14] {
        let mut regs = PtRegs {
            ip: 7,
            ..PtRegs::new()
        };
        assert!(gates::offer::<Adopter>(&mut regs, vector), "{vector}");
    }
}

#[test]
fn one_task_at_a_time_has_the_lock() {
    static LOCK: lock_api::Mutex<TaskLock<Adopter>, u32> =
        lock_api::Mutex::from_raw(<TaskLock<Adopter> as lock_api::RawMutex>::INIT, 0);
    static INSIDE: AtomicU32 = AtomicU32::new(0);
    let add = || {
        for _ in 0..1000 {
            let mut count = LOCK.lock();
            assert_eq!(INSIDE.fetch_add(1, Relaxed), 0);
            thread::yield_now();
            *count += 1;
            INSIDE.fetch_sub(1, Relaxed);
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(add)));
    assert_eq!(*LOCK.lock(), 4000);
    let held = LOCK.lock();
    assert!(LOCK.try_lock().is_none());
    drop(held);
}
