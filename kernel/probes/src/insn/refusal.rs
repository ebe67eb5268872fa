//! Why an instruction may not be probed, one reason per entry, with its errno and the way out.
//!
//! Each reason has a name for statistics (the survey of a whole kernel counts by it), the errno
//! that a registration fails with, and a sentence for the person who wanted the probe. The sentence
//! says what is the matter, and where a probe can be put instead.
//!
//! The errnos are written here and not taken from a kernel's: this crate knows no kernel.

use core::fmt;

/// The errno values that refusals use, positive as in `errno.h`.
pub(super) mod errno {
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const EILSEQ: i32 = 84;
    pub const EOPNOTSUPP: i32 = 95;
}

/// A reason why an instruction may not be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// `int3`: somebody else's breakpoint, or padding.
    Breakpoint,
    /// `int n`, `int1`, `into`.
    SoftwareInterrupt,
    /// `ud0`, `ud1`, `ud2`.
    Undefined,
    /// `ud2` with a hypervisor's signature after it.
    ForcedEmulation,
    /// `mov ss, r/m`: holds off debug traps until after the next instruction.
    StackSegmentLoad,
    /// Far call, far jump, far return.
    FarTransfer,
    /// `iret`, `uiret`, `eretu`, `erets`.
    InterruptReturn,
    /// `hlt`, `mwait`, `mwaitx`, `umwait`: would sleep with interrupts off.
    Wait,
    /// `syscall`, `sysret`, `sysenter`, `sysexit`.
    SystemCall,
    /// `swapgs`, `wrgsbase`, `vmload` and loads of GS: per-CPU data would not be found after it.
    GsBase,
    /// `wrmsr` and its kin under a post handler. It may write the GS base, and then the post
    /// handler's hit would not find its per-CPU data.
    MsrWrite,
    /// `xbegin`: its abort target is relative to itself.
    Transaction,
    /// `vmlaunch`, `vmresume`, `vmrun`.
    VirtualMachineEntry,
    /// `rsm`.
    SystemManagementReturn,
    /// Writes to CR0, CR3 or CR4: the code after it may no longer be mapped.
    ControlRegister,
    /// `lgdt`, `lidt`, `ltr`, `lldt`: the next trap may not find its handler.
    DescriptorTable,
    /// Reads and writes of the shadow stack, which emulated calls and returns do not maintain.
    ShadowStack,
    /// 0x66 on a near branch: processors disagree about its length and effect.
    OperandSizeBranch,
    /// A prefix that may mean different things to processors, where the replacement cannot leave
    /// the choice to the processor at hand.
    Prefix,
    /// `sti` whose one-instruction interrupt shadow the next instruction relies on.
    InterruptShadow,
    /// A RIP-relative operand is too far from the slot.
    DisplacementRange,
    /// The replacement code does not fit into its buffer.
    NoRoom,
}

impl Refusal {
    /// Every reason, in the order of their declaration.
    pub const ALL: [Self; 22] = [
        Self::Breakpoint,
        Self::SoftwareInterrupt,
        Self::Undefined,
        Self::ForcedEmulation,
        Self::StackSegmentLoad,
        Self::FarTransfer,
        Self::InterruptReturn,
        Self::Wait,
        Self::SystemCall,
        Self::GsBase,
        Self::MsrWrite,
        Self::Transaction,
        Self::VirtualMachineEntry,
        Self::SystemManagementReturn,
        Self::ControlRegister,
        Self::DescriptorTable,
        Self::ShadowStack,
        Self::OperandSizeBranch,
        Self::Prefix,
        Self::InterruptShadow,
        Self::DisplacementRange,
        Self::NoRoom,
    ];

    /// The errno of a registration that fails so, positive.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Breakpoint | Self::SoftwareInterrupt | Self::Undefined => errno::EILSEQ,
            Self::ForcedEmulation | Self::StackSegmentLoad | Self::DisplacementRange => {
                errno::EINVAL
            }
            Self::NoRoom => errno::ENOSPC,
            Self::FarTransfer
            | Self::InterruptReturn
            | Self::Wait
            | Self::SystemCall
            | Self::GsBase
            | Self::MsrWrite
            | Self::Transaction
            | Self::VirtualMachineEntry
            | Self::SystemManagementReturn
            | Self::ControlRegister
            | Self::DescriptorTable
            | Self::ShadowStack
            | Self::OperandSizeBranch
            | Self::Prefix
            | Self::InterruptShadow => errno::EOPNOTSUPP,
        }
    }

    /// Short, stable name for tables and statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Breakpoint => "breakpoint",
            Self::SoftwareInterrupt => "software-interrupt",
            Self::Undefined => "undefined",
            Self::ForcedEmulation => "forced-emulation",
            Self::StackSegmentLoad => "stack-segment-load",
            Self::FarTransfer => "far-transfer",
            Self::InterruptReturn => "interrupt-return",
            Self::Wait => "wait",
            Self::SystemCall => "system-call",
            Self::GsBase => "gs-base",
            Self::MsrWrite => "msr-write",
            Self::Transaction => "transaction",
            Self::VirtualMachineEntry => "vm-entry",
            Self::SystemManagementReturn => "smm-return",
            Self::ControlRegister => "control-register",
            Self::DescriptorTable => "descriptor-table",
            Self::ShadowStack => "shadow-stack",
            Self::OperandSizeBranch => "operand-size-branch",
            Self::Prefix => "prefix",
            Self::InterruptShadow => "interrupt-shadow",
            Self::DisplacementRange => "displacement-range",
            Self::NoRoom => "no-room",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Breakpoint => {
                "it is a breakpoint already; remove the other debugger's breakpoint, or probe the \
                    instruction before it if this is padding"
            }
            Self::SoftwareInterrupt => {
                "it raises an interrupt by itself; probe the interrupt's handler instead"
            }
            Self::Undefined => {
                "it is meant to trap (a panic or unreachable end); probe the instruction before it"
            }
            Self::ForcedEmulation => {
                "it asks the hypervisor to emulate the instruction after it; probe a neighbour"
            }
            Self::StackSegmentLoad => {
                "loading SS holds off debug traps for one instruction; probe the instruction \
                    after it"
            }
            Self::FarTransfer => {
                "far calls, jumps and returns do not run out of line; probe the target or the \
                    caller"
            }
            Self::InterruptReturn => {
                "it returns from an interrupt; probe the handler before that point"
            }
            Self::Wait => {
                "it waits for an interrupt, which must not happen out of line; probe \
                the instruction before it"
            }
            Self::SystemCall => {
                "it enters or leaves the kernel; probe the system call's function instead"
            }
            Self::GsBase => {
                "it changes the GS base, through which the probes find their per-CPU data; probe \
                    a neighbour"
            }
            Self::MsrWrite => {
                "it may write the GS base, through which a post handler is found; leave the post \
                    handler out, or probe the instruction after it"
            }
            Self::Transaction => {
                "its abort address is relative to itself; probe the fallback path or the \
                    instruction before it"
            }
            Self::VirtualMachineEntry => "it enters a virtual machine; probe the code around it",
            Self::SystemManagementReturn => {
                "it leaves system management mode; there is nothing to probe there"
            }
            Self::ControlRegister => {
                "it may unmap the code that follows it out of line; probe the instruction after it"
            }
            Self::DescriptorTable => {
                "it replaces tables that the next trap needs; probe the instruction after it"
            }
            Self::ShadowStack => {
                "it works on the shadow stack, which the probes do not maintain; probe a neighbour"
            }
            Self::OperandSizeBranch => {
                "processors disagree about a near branch with an operand-size prefix; remove the \
                    0x66 from the code, or probe a neighbour"
            }
            Self::Prefix => {
                "it has a prefix without a meaning there, which processors may take differently; \
                    remove the prefix from the code, or probe a neighbour"
            }
            Self::InterruptShadow => {
                "the instruction after this sti relies on interrupts staying off until it has \
                    begun; probe the instruction before the sti"
            }
            Self::DisplacementRange => {
                "its RIP-relative operand is more than 2 GiB away from every slot; allocate slots \
                    nearer to the code"
            }
            Self::NoRoom => "its replacement does not fit into a slot; probe a neighbour",
        })
    }
}

impl core::error::Error for Refusal {}
