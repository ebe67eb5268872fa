//! The models.
//!
//! Each entry of [`ALL`] names a function that is run in all interleavings, how many preemptions
//! they have at the most, and the weaknesses that it must notice. The modules have one part of the
//! probes or of tracing each; what several of them need is here.

mod counters;
mod grace;
mod instances;
mod maps;
mod sites;
mod spare;
mod table;
mod trace;

use crate::Weakness;

/// See the crate's text.
pub struct Model {
    pub name: &'static str,
    pub run: fn(),
    /// How many preemptions its interleavings have at the most, in the short form.
    pub preemptions: usize,
    /// The weaknesses that make it fail.
    pub needs: &'static [Weakness],
}

use Weakness::{
    Acquire, AlwaysQuiescent, ArmFirst, Exchange, Fence, Grace, HeadBeforeTag, Release, Tag,
};

pub const ALL: &[Model] = &[
    Model {
        name: "a_breakpoint_that_is_seen_has_its_site",
        run: table::published,
        preemptions: 3,
        needs: &[Release, Acquire, ArmFirst],
    },
    Model {
        name: "removal_keeps_the_others_and_frees_what_nobody_finds",
        run: table::removed,
        preemptions: 3,
        needs: &[Grace, Fence],
    },
    Model {
        name: "a_sweep_hides_no_site",
        run: table::swept,
        preemptions: 3,
        needs: &[Grace],
    },
    Model {
        name: "an_instance_is_in_one_hand",
        run: instances::free_list,
        preemptions: 3,
        needs: &[Release, Acquire, Exchange, Tag],
    },
    Model {
        name: "a_pop_reads_the_tag_first",
        run: instances::reused,
        preemptions: 3,
        needs: &[HeadBeforeTag, Tag],
    },
    Model {
        name: "each_task_has_one_cell",
        run: instances::cells,
        preemptions: 3,
        needs: &[Exchange],
    },
    Model {
        name: "a_dead_task_gives_its_instances_back",
        run: instances::flushed,
        preemptions: 3,
        needs: &[Acquire, Release],
    },
    Model {
        name: "a_holder_outlives_its_calls",
        run: instances::reclaimed,
        preemptions: 3,
        needs: &[Grace, Fence],
    },
    Model {
        name: "a_hit_sees_a_consistent_list_of_probes",
        run: sites::linked,
        preemptions: 3,
        needs: &[Release, Acquire],
    },
    Model {
        name: "an_unlinked_probe_is_left_alone",
        run: sites::unlinked,
        preemptions: 3,
        needs: &[Grace, Fence],
    },
    Model {
        name: "a_probe_that_is_disabled_has_no_stub_of_its_own",
        run: sites::disabled,
        preemptions: 3,
        needs: &[Fence],
    },
    Model {
        name: "a_count_is_that_of_its_probe",
        run: counters::given_back,
        preemptions: 3,
        needs: &[Release, Acquire],
    },
    Model {
        name: "text_is_new_after_the_wait",
        run: grace::cores,
        preemptions: 3,
        needs: &[Release, Acquire],
    },
    Model {
        name: "slots_are_left_after_the_wait",
        run: grace::hits,
        preemptions: 3,
        needs: &[Release, Acquire, AlwaysQuiescent],
    },
    Model {
        name: "slots_of_removed_sites_are_left_after_the_wait",
        run: grace::removed,
        preemptions: 3,
        needs: &[Release, Acquire, AlwaysQuiescent],
    },
    Model {
        name: "a_consumer_takes_whole_records",
        run: trace::consumed,
        preemptions: 2,
        needs: &[Fence],
    },
    Model {
        name: "a_cursor_shows_whole_records",
        run: trace::shown,
        preemptions: 2,
        needs: &[Fence],
    },
    Model {
        name: "a_record_that_is_not_read_stops_the_writer",
        run: trace::stopped,
        preemptions: 2,
        needs: &[],
    },
    Model {
        name: "a_record_that_is_seen_is_complete",
        run: trace::published,
        preemptions: 2,
        needs: &[Release, Acquire],
    },
    Model {
        name: "a_reset_counts_what_it_removes",
        run: trace::cleared,
        preemptions: 2,
        needs: &[Exchange],
    },
    Model {
        name: "a_snapshot_loses_no_record",
        run: spare::exchanged,
        preemptions: 2,
        needs: &[AlwaysQuiescent],
    },
    Model {
        name: "a_snapshot_that_is_wanted_is_taken",
        run: spare::asked_twice,
        preemptions: 2,
        needs: &[],
    },
    Model {
        name: "a_consumer_meets_no_snapshot",
        run: spare::consumed,
        preemptions: 2,
        needs: &[Release, Acquire, Exchange],
    },
    Model {
        name: "a_task_that_clears_meets_no_snapshot",
        run: spare::cleared,
        preemptions: 2,
        needs: &[Release, Acquire, Exchange],
    },
    Model {
        name: "a_new_key_of_a_map_has_one_slot",
        run: maps::inserted,
        preemptions: 2,
        needs: &[Release, Acquire, Exchange],
    },
    Model {
        name: "an_addition_reaches_its_own_key_or_none",
        run: maps::taken_over_word,
        preemptions: 3,
        needs: &[Release, Acquire, Exchange],
    },
    Model {
        name: "an_addition_to_a_long_key_reaches_its_own_key_or_none",
        run: maps::taken_over_words,
        preemptions: 3,
        needs: &[Release, Acquire, Exchange],
    },
    Model {
        name: "a_key_is_brought_to_one_slot",
        run: maps::brought_twice,
        preemptions: 3,
        needs: &[Release, Acquire, Exchange],
    },
    Model {
        name: "a_key_that_returns_begins_with_its_own_value",
        run: maps::returned,
        preemptions: 3,
        needs: &[Release, Acquire, Exchange],
    },
    Model {
        name: "a_value_that_is_found_is_complete",
        run: maps::complete,
        preemptions: 3,
        needs: &[Release],
    },
    Model {
        name: "a_reader_sees_one_entry",
        run: maps::read,
        preemptions: 2,
        needs: &[Release, Acquire, Fence],
    },
    Model {
        name: "a_reader_sees_one_key",
        run: maps::read_another,
        preemptions: 2,
        needs: &[Release, Acquire, Fence],
    },
    Model {
        name: "a_number_leads_to_its_trace",
        run: maps::traced,
        preemptions: 2,
        needs: &[Exchange],
    },
    Model {
        name: "a_forgotten_number_leads_to_no_trace",
        run: maps::forgotten,
        preemptions: 3,
        needs: &[Fence],
    },
];

use crate::{
    data::{site::Site, trap_ip::TrapIp},
    memory::Content,
    weakness::is_weak,
};
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire as AcquireOrder, Relaxed, SeqCst},
    fence,
};
use loom::thread::{self, JoinHandle};

/// A CPU as the waits see it: in a hit, or not. It stands for the IPI, whose protocol has models of
/// its own (`grace`).
struct Cpu {
    in_hit: AtomicBool,
}

impl Cpu {
    fn new() -> Self {
        Self {
            in_hit: AtomicBool::new(false),
        }
    }

    /// Runs `hit` where no grace period ends.
    fn hit<R>(&self, hit: impl FnOnce() -> R) -> R {
        self.in_hit.store(true, Relaxed);
        fence(SeqCst);
        let result = hit();
        self.in_hit
            .store(false, std::sync::atomic::Ordering::Release);
        result
    }

    /// Returns when a hit that was under way at the call is over.
    fn grace(&self) {
        fence(SeqCst);
        while self.in_hit.load(AcquireOrder) && !is_weak(Grace) {
            thread::yield_now();
        }
    }

    fn touch(&self) {
        self.in_hit.load(Relaxed);
    }
}

/// A site and the stand-in for its fields.
#[repr(C)]
struct Filled {
    site: Site,
    content: Content,
}

impl Filled {
    fn new(key: u64) -> Self {
        Self {
            site: Site::sentinel(TrapIp(key)),
            content: Content::new(),
        }
    }

    /// The object that `site` is part of.
    fn of(site: &Site) -> &Self {
        // SAFETY: all sites of these models are the first fields of one.
        unsafe { &*core::ptr::from_ref(site).cast() }
    }
}

/// Puts something where all threads of an execution reach it.
fn share<T>(value: T) -> &'static T {
    crate::memory::keep(value)
}

/// Starts a thread of the model. All atomics were touched.
fn start<R: 'static>(body: impl FnOnce() -> R + 'static) -> JoinHandle<R> {
    crate::atomic::seal();
    thread::spawn(body)
}
