//! What the probes promise an action and the compiler relies on. Neither crate knows the other, so
//! the promise is written twice, and compared here when the kernel is built.

use core::mem::offset_of;

use bpf::context::Register;
use bpf_compiler::{
    ADDRESS_BEFORE_RETURN, BreakpointFrame as Compiled, EntryFrame as CompiledEntry,
    INSTANCE_RETURN_ADDRESS, INSTANCE_WORDS, WatchpointFrame as Watched,
};
use probes::{
    PtRegs,
    action::{self, BreakpointFrame as Promised, EntryFrame},
    watchpoint::WatchpointFrame,
};

/// The return address of the call of an action. The compiler counts from the word above it.
const RETURN_ADDRESS: usize = size_of::<u64>();

const _: () = {
    assert!(offset_of!(Promised, return_address) == 0);
    assert!(offset_of!(Promised, ax) == RETURN_ADDRESS + Compiled::AX as usize);
    assert!(offset_of!(Promised, cx) == RETURN_ADDRESS + Compiled::CX as usize);
    assert!(offset_of!(Promised, dx) == RETURN_ADDRESS + Compiled::DX as usize);
    assert!(offset_of!(Promised, si) == RETURN_ADDRESS + Compiled::SI as usize);
    assert!(offset_of!(Promised, di) == RETURN_ADDRESS + Compiled::DI as usize);
    assert!(offset_of!(Promised, orig_ax) == RETURN_ADDRESS + Compiled::ORIG_AX as usize);
    assert!(offset_of!(Promised, ip) == RETURN_ADDRESS + Compiled::IP as usize);
    assert!(offset_of!(Promised, cs) == RETURN_ADDRESS + Compiled::CS as usize);
    assert!(offset_of!(Promised, flags) == RETURN_ADDRESS + Compiled::FLAGS as usize);
    assert!(offset_of!(Promised, sp) == RETURN_ADDRESS + Compiled::SP as usize);
    assert!(offset_of!(Promised, ss) == RETURN_ADDRESS + Compiled::SS as usize);
};

/// What the compiler says of a field of [`WatchpointFrame`] that a breakpoint's frame has, too.
const fn watched(in_breakpoint: i32) -> usize {
    RETURN_ADDRESS + (Watched::REST + in_breakpoint) as usize
}

const _: () = {
    assert!(offset_of!(WatchpointFrame, return_address) == 0);
    assert!(offset_of!(WatchpointFrame, old) == RETURN_ADDRESS + Watched::OLD as usize);
    assert!(offset_of!(WatchpointFrame, new) == RETURN_ADDRESS + Watched::NEW as usize);
    assert!(offset_of!(WatchpointFrame, ax) == watched(Compiled::AX));
    assert!(offset_of!(WatchpointFrame, cx) == watched(Compiled::CX));
    assert!(offset_of!(WatchpointFrame, dx) == watched(Compiled::DX));
    assert!(offset_of!(WatchpointFrame, si) == watched(Compiled::SI));
    assert!(offset_of!(WatchpointFrame, di) == watched(Compiled::DI));
    assert!(offset_of!(WatchpointFrame, ip) == watched(Compiled::IP));
    assert!(offset_of!(WatchpointFrame, cs) == watched(Compiled::CS));
    assert!(offset_of!(WatchpointFrame, flags) == watched(Compiled::FLAGS));
    assert!(offset_of!(WatchpointFrame, sp) == watched(Compiled::SP));
};

const _: () = {
    assert!(offset_of!(EntryFrame, return_address) == 0);
    assert!(offset_of!(EntryFrame, instance) == RETURN_ADDRESS + CompiledEntry::INSTANCE as usize);
    assert!(offset_of!(EntryFrame, ax) == RETURN_ADDRESS + Compiled::AX as usize);
    assert!(offset_of!(EntryFrame, cx) == RETURN_ADDRESS + Compiled::CX as usize);
    assert!(offset_of!(EntryFrame, dx) == RETURN_ADDRESS + Compiled::DX as usize);
    assert!(offset_of!(EntryFrame, si) == RETURN_ADDRESS + Compiled::SI as usize);
    assert!(offset_of!(EntryFrame, di) == RETURN_ADDRESS + Compiled::DI as usize);
    assert!(offset_of!(EntryFrame, flags) == RETURN_ADDRESS + CompiledEntry::FLAGS as usize);
    assert!(
        offset_of!(EntryFrame, return_slot) == RETURN_ADDRESS + CompiledEntry::RETURN_SLOT as usize
    );
    // At a return the stack pointer is above the slot.
    assert!(offset_of!(EntryFrame, return_slot) + 8 == size_of::<EntryFrame>());
    assert!(action::WORDS_IN_INSTANCE == INSTANCE_WORDS as usize);
    assert!(action::RETURN_ADDRESS_IN_INSTANCE == INSTANCE_RETURN_ADDRESS as usize);
};

const _: () = assert!(action::ADDRESS_BEFORE_RETURN == ADDRESS_BEFORE_RETURN as usize);

/// Asserts that registers have the same place in the context of a program and in [`PtRegs`].
macro_rules! same_place {
    ($($register:ident $field:ident)+) => {
        $(assert!(Register::$register.offset() as usize == offset_of!(PtRegs, $field));)+
    };
}

const _: () = {
    same_place! {
        R15 r15 R14 r14 R13 r13 R12 r12 Bp bp Bx bx R11 r11 R10 r10 R9 r9 R8 r8
        Ax ax Cx cx Dx dx Si si Di di OrigAx orig_ax Ip ip Cs cs Flags flags Sp sp Ss ss
    }
    assert!(size_of::<PtRegs>() == Register::ALL.len() * size_of::<u64>());
};
