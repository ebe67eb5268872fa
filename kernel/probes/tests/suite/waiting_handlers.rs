//! Handlers that stay until they are told to go on, and note 1 when they do. Tests run one at a
//! time.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use probes::{Kprobe, KretprobeInstance, PreVerdict, PtRegs};

use super::{targets::add, *};
use crate::platform::cpu::Scope;

/// Some CPU is in a handler, or has been.
static ENTERED: AtomicBool = AtomicBool::new(false);
static GO_ON: AtomicBool = AtomicBool::new(false);

fn wait_until_let_go() {
    ENTERED.store(true, Release);
    while !GO_ON.load(Acquire) {
        core::hint::spin_loop();
    }
    journal::note(1);
}

pub fn pre(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    wait_until_let_go();
    PreVerdict::Execute
}

pub fn post(_: &Kprobe, _: &mut PtRegs, _: u64) {
    wait_until_let_go();
}

pub fn returned(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
    wait_until_let_go();
}

/// Has another CPU call [`add`], which one of these handlers is on, and returns when it is in the
/// handler.
pub fn enter(scope: Scope<'_, '_>) {
    ENTERED.store(false, Relaxed);
    GO_ON.store(false, Relaxed);
    scope.spawn(|| {
        assert_eq!(add(1, 2), 3);
    });
    while !ENTERED.load(Acquire) {
        cpu::yield_now();
    }
}

/// Lets the handler go on.
pub fn let_go() {
    GO_ON.store(true, Release);
}
