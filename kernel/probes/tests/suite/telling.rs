//! Return probes that note a number at each return: by a handler, or by an action with its forms.

use core::arch::naked_asm;

use probes::{CallAction, EntryVerdict, Kretprobe, PtRegs};

use super::{journal::note, returned};

/// What a return probe does by which code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    Handler,
    /// An action at the return.
    Action,
    /// An action at the entry, too, which follows each call.
    ActionAtBoth,
}

impl By {
    pub const ALL: [Self; 3] = [Self::Handler, Self::Action, Self::ActionAtBoth];
}

/// `probe`, which has no handlers yet, with one that notes `N` at the return.
pub fn telling<const N: u64>(probe: Kretprobe, by: By) -> Kretprobe {
    if by == By::Handler {
        return probe.handler(returned::<N, ()>);
    }
    let at_both = by == By::ActionAtBoth;
    // SAFETY: the code is that of this file, and does as `CallAction` says.
    unsafe {
        probe.action(CallAction {
            entry: at_both.then_some(follow),
            jump_entry: at_both.then_some(follow_by_jump),
            on_return: note_return::<N>,
            jump_return: Some(note_return_by_jump::<N>),
            shared_words: 0,
        })
    }
}

extern "C" fn follow(_: *mut (), _: &mut PtRegs) -> EntryVerdict {
    EntryVerdict::Track
}

#[unsafe(naked)]
unsafe extern "C" fn follow_by_jump() {
    naked_asm!("mov eax, {track}", "ret", track = const EntryVerdict::Track as u8)
}

extern "C" fn note_return<const N: u64>(_: *mut (), _: &mut PtRegs) {
    note(N);
}

extern "C" fn note_number(number: u64) {
    note(number);
}

/// Calls a C function, and so saves what that may change and this may not.
#[unsafe(naked)]
unsafe extern "C" fn note_return_by_jump<const N: u64>() {
    naked_asm!(
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "sub rsp, 8",
        "mov edi, {number}",
        "call {note}",
        "add rsp, 8",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "ret",
        number = const N,
        note = sym note_number,
    )
}
