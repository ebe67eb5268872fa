//! A site's list of probes and the stub that its first one names: the registry and a hit.
//!
//! The registry changes the list and its head's stub while a hit reads both. The hit must find a
//! list that was there at some time, served by the stub that fits it, and nothing that is freed
//! before a grace period is over.

use core::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use super::{Cpu, share, start};
use crate::{
    data::{
        entry_points::{EntryPoints, Routines, Template, Templates, WatchStubs},
        kprobe::{Kprobe, PreVerdict, flags},
        site::Site,
        trap_ip::TrapIp,
    },
    memory::Content,
    pt_regs::PtRegs,
};

const ANY: u64 = 0;
const HIT: u64 = 1;
const NOTHING: u64 = 2;
const KPROBE: u64 = 3;
const CHAIN: u64 = 4;
const FAR_CHAIN: u64 = 5;
/// For other probes than those of the models.
const OTHER: u64 = 6;

const TEMPLATE: Template = Template {
    start: 0,
    enter: 0,
    end: 0,
};

const ENTRY: EntryPoints = EntryPoints {
    trampoline: 0,
    action_trampoline: 0,
    historic_trampolines: [0; 2],
    post_stub: 0,
    jprobe_return: 0,
    detours: Templates {
        at_entry: TEMPLATE,
        anywhere: TEMPLATE,
        lone_entry: TEMPLATE,
        lone_action: TEMPLATE,
        lone_return: TEMPLATE,
        lone_return_keeping_flags: TEMPLATE,
        returns: TEMPLATE,
    },
    per_cpu: 0,
    any_hit: ANY,
    hit: HIT,
    hit_post: OTHER,
    one_kretprobe: OTHER,
    kretprobes: OTHER,
    action: OTHER,
    watch: WatchStubs::NONE,
    routines: Routines {
        nothing: NOTHING,
        count: OTHER,
        kprobe: KPROBE,
        action: OTHER,
        kretprobe: OTHER,
        kretprobe_entry: OTHER,
        jprobe: OTHER,
        slow_path: OTHER,
        chain: CHAIN,
        far: OTHER,
        far_chain: FAR_CHAIN,
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
            site: Site::sentinel(TrapIp(0xffff_ffff_8000_1001)),
            probes: [(); 2].map(|()| Probe {
                kprobe: Kprobe::new().pre(nothing),
                content: Content::new(),
            }),
            registered: [const { AtomicBool::new(false) }; 2],
            cpu: Cpu::new(),
        });
        world.cpu.touch();
        head(&world.site).load(Relaxed);
        let idle = &crate::data::site::IDLE;
        idle.stub.store(ANY, Relaxed);
        idle.chain.store(NOTHING, Relaxed);
        for probe in &world.probes {
            probe.kprobe.next.load(Relaxed);
            probe.kprobe.flags();
            probe.kprobe.addr();
            probe.kprobe.routine.store(OTHER, Relaxed);
            probe.kprobe.chain.store(OTHER, Relaxed);
            probe.kprobe.stub.store(OTHER, Relaxed);
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

    /// A hit as `kprobe_breakpoint` serves it: the head, its stub, and the work of its `chain`.
    /// Returns which probes ran.
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
            HIT => {}
            ANY => {
                let enabled = self.site.probes().filter(|probe| probe.is_enabled());
                enabled.for_each(run);
                return ran;
            }
            stub => panic!("stub {stub}"),
        }
        match first.chain.load(Relaxed) {
            NOTHING => {}
            KPROBE => run(first),
            CHAIN | FAR_CHAIN => {
                for probe in first.and_older() {
                    match probe.routine.load(Relaxed) {
                        NOTHING => {}
                        KPROBE => run(probe),
                        routine => panic!("routine {routine}"),
                    }
                }
            }
            chain => panic!("chain {chain}"),
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

/// Two probes come to a site. A hit runs each probe that was there before it, once, and none that
/// is not filled in.
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

/// One of two probes goes, the older or the newer one. Hits always run the other one. The one that
/// went belongs to its owner again.
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

/// A handle is dropped in a handler, which disables its probe without the registry's lock.
/// Meanwhile the registry chooses the probe's stub. In the end its hits find it disabled.
pub(super) fn disabled() {
    let world = World::new();
    world.link(0);
    let cpu = world;
    let handler = start(move || {
        // As in the drop of `Registered`.
        let kprobe = &cpu.probes[0].kprobe;
        kprobe.flags.fetch_or(flags::DISABLED, SeqCst);
        fence(SeqCst);
        kprobe.silence(&ENTRY);
    });
    world.site.choose_stubs(&ENTRY);
    handler.join().expect("no panic");
    assert_eq!(world.hit(), [false, false]);
}
