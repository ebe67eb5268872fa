//! Which routine of [`asm`](crate::asm) does what a probe wants done: by name for the registry, by address for the assembly.

/// The addresses of the routines.
#[derive(Clone, Copy, Debug)]
pub struct Routines {
    pub nothing: u64,
    pub count: u64,
    pub kprobe: u64,
    pub kretprobe: u64,
    pub kretprobe_entry: u64,
    /// 0 where a kernel has its own entry for breakpoints: detours have no jprobes.
    pub jprobe: u64,
    pub unusual: u64,
    pub chain: u64,
    pub far_chain: u64,
}

/// Which of the routines serves a probe alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Nothing,
    Count,
    Kprobe,
    Kretprobe,
    KretprobeEntry,
    Jprobe,
    Unusual,
}

impl Service {
    /// The routine's address.
    pub(crate) fn routine(self, routines: &Routines) -> u64 {
        match self {
            Self::Nothing => routines.nothing,
            Self::Count => routines.count,
            Self::Kprobe => routines.kprobe,
            Self::Kretprobe => routines.kretprobe,
            Self::KretprobeEntry => routines.kretprobe_entry,
            Self::Jprobe => routines.jprobe,
            Self::Unusual => routines.unusual,
        }
    }
}
