//! A site's list of probes and the stub that its first one names: the registry and a hit.

use core::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use super::{Cpu, share, start};
use crate::{
    kprobe::{Kprobe, PreVerdict, Service, flags},
    memory::Content,
    platform::{DetourStubs, EntryPoints},
    pt_regs::PtRegs,
    site::Site,
};

const ANY: u64 = 1;
const ONE: u64 = 2;

const ENTRY: EntryPoints = EntryPoints {
    trampoline: 0,
    any_hit: ANY,
    one_kprobe: ONE,
    one_kretprobe: 3,
    detours: DetourStubs {
        serve_one: ONE,
        serve_any: ANY,
    },
};

#[repr(C)]
struct Probe {
    kprobe: Kprobe,
    content: Content,
}

fn nothing(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

struct World {
    site: Site,
    probes: [Probe; 2],
    /// That the registration of a probe has returned.
    registered: [AtomicBool; 2],
    cpu: Cpu,
}

impl World {
    fn new() -> &'static Self {
        let world = share(Self {
            site: Site::sentinel(0xffff_ffff_8000_1001),
            probes: [(); 2].map(|()| Probe {
                kprobe: Kprobe::new().pre(nothing),
                content: Content::new(),
            }),
            registered: [const { AtomicBool::new(false) }; 2],
            cpu: Cpu::new(),
        });
        world.cpu.touch();
        world.site.first.load(Relaxed);
        head(&world.site).load(Relaxed);
        crate::site::IDLE.serve_by(Service::Any, &ENTRY);
        for probe in &world.probes {
            probe.kprobe.next.load(Relaxed);
            probe.kprobe.flags();
            probe.kprobe.addr();
            probe.kprobe.serve_by(Service::Any, &ENTRY);
        }
        for registered in &world.registered {
            registered.load(Relaxed);
        }
        world
    }

    fn link(&self, n: usize) {
        self.probes[n].content.write(1);
        self.site.link(&self.probes[n].kprobe, &ENTRY);
    }

    /// A hit as `kprobe_breakpoint` serves it: the head, its stub, and what the stub does. Returns which probes ran.
    fn hit(&self) -> [bool; 2] {
        let mut ran = [false; 2];
        let position = |probe: &Kprobe| {
            let is_it = |other: &Probe| core::ptr::eq(&other.kprobe, probe);
            self.probes.iter().position(is_it)
        };
        let mut run = |probe: &Kprobe| {
            let at = position(probe).expect("one of the two");
            assert!(!ran[at], "a handler ran twice");
            ran[at] = true;
            assert_eq!(self.probes[at].content.read(), 1);
        };
        // SAFETY: never null, and probes live until a grace period is over.
        let first = unsafe { &*head(&self.site).load(Acquire) };
        if let Some(at) = position(first) {
            // The stub is one of its fields.
            assert_eq!(self.probes[at].content.read(), 1);
        }
        match first.stub.load(Relaxed) {
            ONE => run(first),
            ANY => self.site.probes().for_each(run),
            stub => panic!("stub {stub}"),
        }
        ran
    }
}

/// The field that the stubs read.
fn head(site: &Site) -> &AtomicPtr<Kprobe> {
    // SAFETY: in bounds, and of this type.
    unsafe {
        &*core::ptr::from_ref(site)
            .byte_add(Site::head_offset())
            .cast()
    }
}

/// Two probes come to a site. A hit runs those that were there before it, each once, and none that is not filled in.
pub(super) fn linked() {
    let world = World::new();
    let cpu = world;
    let hits = start(move || {
        for _ in 0..2 {
            let before = [0, 1].map(|n| cpu.registered[n].load(Acquire));
            let ran = cpu.hit();
            for n in 0..2 {
                assert!(ran[n] || !before[n], "a registered probe was passed over");
            }
        }
    });
    for n in 0..2 {
        world.link(n);
        world.registered[n].store(true, Release);
    }
    hits.join().expect("no panic");
}

/// One of two probes goes, the older or the newer one. The other one is served all the time, and the one that went is its owner's again.
pub(super) fn unlinked() {
    let world = World::new();
    world.link(0);
    world.link(1);
    let cpu = world;
    let hits = start(move || {
        for _ in 0..2 {
            cpu.cpu.hit(|| {
                assert!(cpu.hit()[0], "a registered probe was passed over");
            });
        }
    });
    world.site.unlink(&world.probes[1].kprobe, &ENTRY);
    world.cpu.grace();
    world.probes[1].content.write(77);
    hits.join().expect("no panic");
}

/// A handle is dropped in a handler, which disables its probe without the registry's lock, while the registry chooses the probe's stub.
/// In the end its hits are served by the stub that asks whether it is enabled.
pub(super) fn disabled() {
    let world = World::new();
    world.link(0);
    let cpu = world;
    let handler = start(move || {
        // As in the drop of `Registered`.
        let kprobe = &cpu.probes[0].kprobe;
        kprobe.flags.fetch_or(flags::DISABLED, SeqCst);
        fence(SeqCst);
        kprobe.serve_by(Service::Any, &ENTRY);
    });
    world.site.choose_stub(&world.probes[0].kprobe, &ENTRY);
    handler.join().expect("no panic");
    assert_eq!(world.probes[0].kprobe.stub.load(Relaxed), ANY);
}
