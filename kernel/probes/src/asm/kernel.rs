//! All that the macros put into a kernel, by one of them.

/// Puts the probes into a kernel: the static that holds them, the assembly, the entries of traps,
/// and what the traits [`Entries`](crate::platform::Entries) and [`Host`](crate::Host) ask for.
/// Once a program.
///
/// - The type that implements [`Platform`](crate::Platform), which is of this crate, and the name
///   of the static.
/// - `cs`, `ss`: the selectors of the kernel's code and stacks.
/// - `gates`: the vectors of the traps that the probes are to be offered, beside 3: 1, and each
///   fault that probed code may raise and that the kernel survives or reports, at least 13 and 14.
/// - `clear_ac`: may be left out by kernels without SMAP. As for
///   [`breakpoint_entry!`](crate::breakpoint_entry!).
/// - `mend`: may be left out. A static with a method that is the body of
///   [`Host::mend`](crate::Host::mend).
///
/// The type gets a function `take_gates`, to be called for each interrupt table when it is loaded
/// and filled in, before the first probe. It has these gates lead to the probes. What is not theirs
/// goes to where they led before, with registers and stack as the processor left them.
///
/// ```
/// use core::ops::Range;
///
/// use probes::{PerCpu, Platform, TaskLock, platform::SlotMemory};
///
/// struct Kernel;
///
/// probes::kernel! {
///     Kernel, PROBES, cs = 0x08, ss = 0x10, gates = [1, 13, 14]
/// }
///
/// static CPU: PerCpu = PerCpu::new();
/// static SLOTS: SlotMemory<{ 64 * 1024 }> = SlotMemory::new();
///
/// // SAFETY: the clauses of its list, as this kernel keeps them.
/// unsafe impl Platform for Kernel {
///     type RawMutex = TaskLock<Self>;
///
///     fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
///         (cpu == 0).then_some(&CPU)
///     }
///
///     fn slots() -> Range<u64> {
///         SLOTS.range()
///     }
///
///     fn stack_of(_: u64) -> Range<u64> {
///         0..0
///     }
/// }
/// # fn main() {}
/// ```
///
/// It is expanded in a module, which also gets the names that the macros of the next paragraph
/// define, and `BREAKPOINT_OWNER`.
///
/// A kernel that needs something else expands [`entry_points!`](crate::entry_points!),
/// [`breakpoint_entry!`](crate::breakpoint_entry!) and [`trap_entry!`](crate::trap_entry!), and
/// implements the two traits.
#[macro_export]
macro_rules! kernel {
    (
        $kernel:ident, $probes:ident, cs = $cs:expr, ss = $ss:expr,
        gates = [$($vector:literal),+ $(,)?] $(, mend = $mend:path)? $(,)?
    ) => {
        $crate::kernel! {
            $kernel, $probes, cs = $cs, ss = $ss,
            gates = [$($vector),+], clear_ac = "" $(, mend = $mend)?
        }
    };
    (
        $kernel:ident, $probes:ident, cs = $cs:expr, ss = $ss:expr,
        gates = [$($vector:literal),+ $(,)?], clear_ac = $clear_ac:literal
        $(, mend = $mend:path)? $(,)?
    ) => {
        /// The probes of this kernel.
        pub static $probes: $crate::Probes<$kernel> = $crate::Probes::new();

        /// Where breakpoints go that are not the probes'.
        static BREAKPOINT_OWNER: $crate::gates::GateOwner =
            $crate::gates::GateOwner::to_be_found();

        $crate::entry_points!($kernel, cs = $cs, ss = $ss);
        $crate::breakpoint_entry!(
            $kernel, $probes, owner = BREAKPOINT_OWNER, clear_ac = $clear_ac
        );

        impl $crate::platform::Entries for $kernel {
            fn entry_points() -> $crate::platform::EntryPoints {
                with_breakpoint_entry(probe_entry_points())
            }
        }

        impl $crate::Host for $kernel {
            #[inline(always)]
            fn probes() -> &'static $crate::Probes<Self> {
                &$probes
            }

            $(
                #[inline(always)]
                fn mend(regs: &mut $crate::PtRegs) -> bool {
                    $mend.mend(regs)
                }
            )?
        }

        impl $kernel {
            /// Has the gates of the probes' traps in this CPU's interrupt table lead to them.
            ///
            /// # Safety
            /// 1. The table is loaded, filled in and writable at its address, and no CPU that
            ///    uses it takes one of these traps meanwhile.
            /// 2. All tables led to the same handlers before.
            pub unsafe fn take_gates() {
                if BREAKPOINT_OWNER.address() == 0 {
                    $probes.init_table();
                }
                // SAFETY: `kprobe_breakpoint` is for this vector and owner, and the contract.
                unsafe { BREAKPOINT_OWNER.take(3, kprobe_breakpoint) };
                $({
                    const {
                        assert!($vector != 3, "the gate of breakpoints is among them always");
                    }
                    static OWNER: $crate::gates::GateOwner =
                        $crate::gates::GateOwner::to_be_found();

                    #[unsafe(naked)]
                    #[unsafe(export_name = concat!("kprobe_gate_", $vector))]
                    unsafe extern "C" fn entry() {
                        $crate::trap_code!(
                            $kernel, $vector, owner = OWNER, clear_ac = $clear_ac
                        )
                    }

                    // SAFETY: as above.
                    unsafe { OWNER.take($vector, entry) };
                })+
            }
        }
    };
    ($($other:tt)*) => {
        ::core::compile_error!(
            "write `KERNEL_TYPE, NAME_OF_A_NEW_STATIC, cs = SELECTOR, ss = SELECTOR, \
             gates = [1, 13, 14]`; then there may be `clear_ac = \"clac\"` and `mend = STATIC`, \
             in this order"
        );
    };
}
