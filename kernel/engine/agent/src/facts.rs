//! What a kernel says of itself: the types in the methods of [`Agent`](crate::Agent).

use alloc::boxed::Box;

use probes::{
    PtRegs, Touched,
    action::{EntryRoutine, JumpRoutine, ReturnRoutine},
};

/// Nanoseconds of a second.
pub(crate) const NSEC_PER_SEC: u64 = 1_000_000_000;

/// The most CPUs of a kernel that has the agent.
pub const MAX_CPUS: usize = 64;

/// Where the words that the header of an event's record shows are, from the GS base: see
/// [`Agent::SHOWN`](crate::Agent::SHOWN).
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// A byte: [`NEED_RESCHED`](crate::records::flags::NEED_RESCHED) if the running task is to be
    /// preempted, else 0.
    pub need_resched: u32,
    /// A byte: [`INTERRUPT`](crate::records::flags::INTERRUPT) while the handler of an interrupt
    /// runs, and [`NMI`](crate::records::flags::NMI) while that of an NMI does; 0 in tasks. Both if
    /// the NMI has come in the middle of the other.
    pub interrupt: u32,
    /// 4 bytes: how many reasons there are not to switch tasks.
    pub preempt_count: u32,
}

/// The timer's ticks, at which profiles run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// The symbol of a function `extern "C" fn(&PtRegs, …)` that is called at each tick, with the
    /// registers that the timer's interrupt found. It can be probed.
    pub function: &'static str,
    /// The time between two ticks.
    pub nanoseconds: u64,
    /// How to have a shorter one, for a person: "boot with …". None: there is no way.
    pub advice: Option<&'static str>,
}

/// A place in user programs: see [`Agent::attach_to_program`](crate::Agent::attach_to_program).
#[derive(Clone, Copy, Debug)]
pub struct PlaceInProgram<'a> {
    /// The path of the program's file.
    pub path: &'a str,
    /// A function of it; none: the offset counts from the start of the file.
    pub function: Option<&'a str>,
    /// Bytes from there.
    pub offset: u64,
    /// The offset in the file of a word of 16 bits that is to be one larger in each process
    /// meanwhile.
    pub counter: Option<u64>,
    /// When a call of the function has returned, in place of before the instruction.
    pub returns: bool,
}

/// What a hit of such a place calls.
pub struct RunInProgram {
    /// With the registers of the program, interrupts off.
    pub run: Box<dyn Fn(&mut PtRegs) + Send + Sync>,
    /// The same in another form, for a kernel that serves such hits in assembly. None: there is no
    /// such form.
    pub routine: Option<RoutineInProgram>,
}

/// Code that is called as [`probes::Action::breakpoint`], in the kernel's world, and that asks
/// nothing of the program in ring 3 but the registers. Only a [`RunInProgram`] has one, and keeps
/// it alive.
#[derive(Clone, Copy, Debug)]
pub struct RoutineInProgram {
    pub(crate) address: u64,
    pub(crate) asks_the_place: bool,
}

impl RoutineInProgram {
    /// Where it is.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Whether it looks at the words of the frame that say where the hit is: `ip`, `orig_ax`, `cs`
    /// and `ss`. What is in them does not matter if not.
    pub fn asks_the_place(self) -> bool {
        self.asks_the_place
    }
}

/// What a watch of an object calls after each instruction that has written there, with interrupts
/// off.
pub type RunAtObject = Box<dyn Fn(&mut PtRegs, &Touched) + Send + Sync>;

/// Something attached to such a place.
pub trait InProgram: Send + Sync {
    /// Ends it. When this returns, no hit calls anything. Returns how many hits were missed.
    fn detach(self: Box<Self>) -> u64;
}

/// Where a program was.
#[derive(Clone, Copy, Debug)]
pub struct ProgramFrame {
    /// Its ip and frame pointer.
    pub ip: u64,
    pub bp: u64,
    /// Where the return address of its function is, if the function has not set up its frame yet.
    pub return_slot: Option<u64>,
}

/// Why there is no table for walks of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTable {
    /// The kernel has none.
    NotHere,
    OutOfMemory,
}

/// The place of an event source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// At this instruction.
    At(u64),
    /// At the return of the function that begins there.
    ReturnOf(u64),
}

/// The addresses of what [`entry_points!`](crate::entry_points!) has made, by their names without
/// `trace_`.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoints {
    pub map_lookup: u64,
    pub map_update: u64,
    pub map_delete: u64,
    pub sum_of_cpus: u64,
    pub most_of_cpus: u64,
    pub delete_of_cpus: u64,
    pub use_key: u64,
    pub add_by_key: u64,
    pub pid_tgid: u64,
    pub comm: u64,
    pub read_user: u64,
    pub read_user_part: u64,
    pub read_user_text: u64,
    pub text_bytes_of_user: u64,
    pub read_kernel: u64,
    pub read_kernel_part: u64,
    pub read_kernel_text: u64,
    pub text_bytes_of_kernel: u64,
    pub can_read: u64,
    pub append_user_text: u64,
    pub append_kernel_text: u64,
    pub ring_reserve: u64,
    pub ring_discard: u64,
    pub event_reserve: u64,
    pub not_recording: u64,
    pub stack_id: u64,
    pub record_stack: u64,
    pub trigger: u64,
    pub aim_watch: u64,
    pub watched_address: u64,
    pub true_address: u64,
    pub find_by_word: u64,
    pub set_by_word: u64,
    pub add_by_word: u64,
    pub delete_by_word: u64,
    pub ring_submit: u64,
    pub record_of_size: u64,
    pub event_of_size: u64,
    pub event_with_room: u64,
    pub graph_root: GraphEntry,
    pub graph_inner: GraphEntry,
    pub graph_root_arguments: GraphEntry,
    pub graph_inner_arguments: GraphEntry,
    pub graph_hidden: GraphEntry,
    pub graph_return: ReturnRoutine,
    pub graph_return_by_jump: JumpRoutine,
}

/// The two routines of an entry in one role, as [`probes::CallAction`] has them.
#[derive(Clone, Copy, Debug)]
pub struct GraphEntry {
    pub entry: EntryRoutine,
    pub by_jump: Option<JumpRoutine>,
}
