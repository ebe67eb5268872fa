//! Probes that a handle owns.
//!
//! Dropping the handle unregisters the probe and gives its memory back. A handle may also be
//! dropped where that cannot be waited for, in a handler or in another thread: then the probe is
//! silent at once, and goes with the next call that may wait.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use probes::{Jprobe, Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs, Registered};

use super::{targets::*, *};

type Handle = Registered<platform::Kernel, Box<Kprobe>>;

#[test]
fn dropping_the_handle_unregisters_the_probe() {
    let _machine = boot();
    let handle: Handle = PROBES
        .register_owned(Box::new(Kprobe::new().symbol("add").pre(pre::<1>)))
        .unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(handle.hits(), 1);
    assert_eq!(
        format!("{handle:?}"),
        format!("Registered({:#x})", address("add"))
    );
    PROBES.disable(&*handle).unwrap();
    add(1, 2);
    PROBES.enable(&*handle).unwrap();
    drop(handle);
    assert_eq!(list(), [""; 0]);
    add(1, 2);
    assert_eq!(journal::take(), [1]);
}

#[test]
fn every_kind_of_probe_can_be_owned() {
    let _machine = boot();
    probes::jprobe! {
        fn arguments(_a: u64, _b: u64) {
            journal::note(2);
        }
    }
    let name = String::from("add");
    let call = PROBES
        .register_owned(Box::new(
            Kretprobe::<u64>::new()
                .symbol_string(name.clone())
                .handler(returned::<3, u64>),
        ))
        .unwrap();
    let jprobe = PROBES
        .register_owned(Box::new(
            Jprobe::new().symbol_string(name.clone()).entry(arguments),
        ))
        .unwrap();
    let kprobe = PROBES
        .register_owned(Box::new(Kprobe::new().symbol_string(name).pre(pre::<1>)))
        .unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [1, 2, 3]);
    drop((call, jprobe, kprobe));
}

#[test]
fn a_shared_probe_outlives_its_handle() {
    let _machine = boot();
    let probe = Arc::new(Kprobe::new().symbol("add").pre(pre::<1>));
    let handle = PROBES.register_owned(Arc::clone(&probe)).unwrap();
    add(1, 2);
    assert_eq!(Arc::strong_count(&probe), 2);
    drop(handle);
    assert_eq!((Arc::strong_count(&probe), probe.hits()), (1, 1));
    let again = PROBES.register_owned(Arc::clone(&probe)).unwrap();
    add(1, 2);
    drop(again);
    assert_eq!(journal::take(), [1, 1]);
}

#[test]
fn a_refused_probe_is_given_up() {
    let _machine = boot();
    let probe = Arc::new(Kprobe::new().symbol("no_such_function"));
    let error = PROBES.register_owned(Arc::clone(&probe)).unwrap_err();
    assert_eq!(error.name(), "UnknownSymbol");
    assert_eq!(Arc::strong_count(&probe), 1);
}

#[test]
fn a_forgotten_handle_leaves_the_probe_registered() {
    let _machine = boot();
    let handle: Handle = PROBES
        .register_owned(Box::new(Kprobe::new().symbol("add").pre(pre::<1>)))
        .unwrap();
    // Both are leaked, and that is all; this test alone takes the probe out again.
    let probe: &'static Kprobe = {
        let probe = core::ptr::from_ref(&*handle);
        core::mem::forget(handle);
        // SAFETY: forgetting the handle keeps the probe for ever.
        unsafe { &*probe }
    };
    add(1, 2);
    assert_eq!(journal::take(), [1]);
    PROBES.unregister(probe).unwrap();
}

#[test]
fn a_handle_dropped_in_a_handler_is_unregistered_later() {
    let _machine = boot();
    static HANDLE: Mutex<Option<Handle>> = Mutex::new(None);
    fn drop_it(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(1);
        drop(HANDLE.lock().take());
        PreVerdict::Execute
    }
    fn drop_it_after(_: &Kprobe, _: &mut PtRegs, _: u64) {
        journal::note(2);
        drop(HANDLE.lock().take());
    }
    let from_pre = Kprobe::new().symbol("add").pre(drop_it).post(post::<3>);
    let from_post = Kprobe::new().symbol("add").post(drop_it_after);
    for (probe, expected) in [(from_pre, [1].as_slice()), (from_post, &[2])] {
        *HANDLE.lock() = Some(PROBES.register_owned(Box::new(probe)).unwrap());
        assert_eq!(add(1, 2), 3);
        assert_eq!(add(1, 2), 3);
        assert_eq!(journal::take(), expected, "disabled at once");
        assert_eq!(list(), ["add+0x0 k 2"]);
        // The next call that may wait does it.
        PROBES.reap().unwrap();
        assert_eq!(list(), [""; 0]);
    }
}

// The breakpoint stays in the text until then, and a hit of it finds no probe to serve. A post
// handler keeps it from becoming a jump.
#[test]
fn hits_of_a_breakpoint_whose_probe_was_dropped_in_a_handler_are_stale() {
    let _machine = boot();
    static HANDLE: Mutex<Option<Handle>> = Mutex::new(None);
    fn drop_it(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        drop(HANDLE.lock().take());
        PreVerdict::Execute
    }
    fn call_it(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(add(3, 4));
        PreVerdict::Execute
    }
    let counts = cpu::counts();
    let stale = || counts.stale_breakpoints.load(Relaxed);
    let before = stale();
    let probe = Kprobe::new().symbol("add").pre(drop_it).post(post::<1>);
    *HANDLE.lock() = Some(PROBES.register_owned(Box::new(probe)).unwrap());
    let outer = leak(Kprobe::new().symbol("neighbour").pre(call_it));
    assert_eq!((add(1, 2), stale()), (3, before));
    assert_eq!((add(1, 2), stale()), (3, before + 1));
    // This registration may wait, so the dropped probe is unregistered first.
    PROBES.register(outer).unwrap();
    let probe = Kprobe::new().symbol("add").pre(drop_it).post(post::<1>);
    *HANDLE.lock() = Some(PROBES.register_owned(Box::new(probe)).unwrap());
    add(1, 2);
    let before = stale();
    neighbour();
    assert_eq!(stale(), before + 1, "in a handler, too");
    PROBES.unregister(outer).unwrap();
    assert_eq!(list(), [""; 0]);
    assert_eq!(journal::take(), [7]);
}

#[test]
fn a_kretprobes_handle_dropped_in_its_own_handlers_is_unregistered_later() {
    let _machine = boot();
    type Call = Registered<platform::Kernel, Box<Kretprobe<u64>>>;
    static HANDLES: Mutex<Vec<Call>> = Mutex::new(Vec::new());
    fn drop_all(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {
        journal::note(1);
        HANDLES.lock().clear();
    }
    for _ in 0..2 {
        for _ in 0..3 {
            let call = Kretprobe::<u64>::new().symbol("add").handler(drop_all);
            let handle = PROBES.register_owned(Box::new(call)).unwrap();
            HANDLES.lock().push(handle);
        }
        assert_eq!(add(1, 2), 3);
        assert_eq!(
            journal::take(),
            [1, 1, 1],
            "calls in flight run their handlers"
        );
        assert_eq!(list(), ["add+0x0 r 2"; 3]);
        let other = leak(Kprobe::new().symbol("neighbour"));
        PROBES.register(other).unwrap();
        assert_eq!(list(), ["neighbour+0x0 k 0"]);
        PROBES.unregister(other).unwrap();
    }
}

#[test]
fn handles_can_be_dropped_by_other_threads() {
    let _machine = boot();
    static HITS: AtomicU64 = AtomicU64::new(0);
    fn count(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        HITS.fetch_add(1, Relaxed);
        PreVerdict::Execute
    }
    let handles: Vec<Handle> = (0..4)
        .map(|_| {
            PROBES
                .register_owned(Box::new(Kprobe::new().symbol("add").pre(count)))
                .unwrap()
        })
        .collect();
    add(1, 2);
    assert_eq!(HITS.load(Relaxed), 4);
    cpu::scope(|scope| {
        for handle in handles {
            scope.spawn(move || {
                drop(handle);
            });
        }
    });
    assert_eq!(list(), [""; 0]);
}
