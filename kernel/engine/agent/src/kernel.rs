//! What the macros put into a kernel: all of it by one macro, or the agent's part by another.

/// Puts the probes and the agent into a kernel: what [`probes::kernel!`] and [`tracing!`] do, and
/// the agent is asked first about each fault. Once a program.
///
/// It takes what [`probes::kernel!`] takes but `mend`, and the name of the agent's static after
/// that of the probes'.
///
/// [`tracing!`]: crate::tracing!
#[macro_export]
macro_rules! kernel {
    (
        $kernel:ident, $probes:ident, $tracing:ident, cs = $cs:expr, ss = $ss:expr,
        gates = [$($vector:literal),+ $(,)?] $(, clear_ac = $clear_ac:literal)? $(,)?
    ) => {
        const _: () = assert!(
            (false $(|| $vector == 13)+) && (false $(|| $vector == 14)+),
            "13 and 14 are among the gates: programs read memory that may not be there"
        );

        $crate::probes::kernel! {
            $kernel, $probes, cs = $cs, ss = $ss,
            gates = [$($vector),+] $(, clear_ac = $clear_ac)?, mend = $tracing
        }
        $crate::tracing!($kernel, $tracing);
    };
    ($($other:tt)*) => {
        ::core::compile_error!(
            "write `KERNEL_TYPE, STATIC_OF_PROBES, STATIC_OF_AGENT, cs = SELECTOR, \
             ss = SELECTOR, gates = [1, 13, 14]`; then there may be `clear_ac = \"clac\"`"
        );
    };
}

/// Puts the agent into a kernel that has the probes already: the static that holds it, the
/// functions that programs call, and the trait [`Traced`](crate::Traced). Once a program.
/// The handlers of protection faults and page faults ask
/// [`Tracing::mend`](crate::Tracing::mend) first.
#[macro_export]
macro_rules! tracing {
    ($agent:ident, $tracing:ident) => {
        /// The agent of the tracer in this kernel.
        pub static $tracing: $crate::Tracing<$agent> = $crate::Tracing::new({
            const PAGES: usize = <$agent as $crate::probes::Platform>::ACTION_PAGES;
            static CODE: [$crate::CodePage; PAGES] = [const { $crate::CodePage::new() }; PAGES];
            &CODE
        });

        const _: () = {
            $crate::entry_points!($agent);

            impl $crate::Traced for $agent {
                #[inline(always)]
                fn tracing() -> &'static $crate::Tracing<Self> {
                    &$tracing
                }

                fn tracing_entry_points() -> $crate::facts::EntryPoints {
                    trace_entry_points()
                }
            }
        };
    };
}
