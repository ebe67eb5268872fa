//! The functions of Linux: `register_kprobe` and its relatives, six for each kind of probe.

use super::{Jprobe, Kprobe, Kretprobe, PROBES, ProbeError};

/// Defines Linux's six functions for one kind of probe.
macro_rules! linux_api {
    (
        $kind:literal, $type:ty $(, $generic:ident)?;
        $register:ident $unregister:ident
        $register_all:ident $unregister_all:ident
        $enable:ident $disable:ident
    ) => {
        #[doc = concat!("Registers a ", $kind, ". Task context, may sleep.")]
        ///
        /// # Errors
        /// [`ProbeError`]; nothing has changed then.
        pub fn $register$(<$generic: Copy + Default + Send + 'static>)?(
            probe: &'static $type,
        ) -> Result<(), ProbeError> {
            PROBES.register(probe)
        }

        #[doc = concat!("Unregisters a ", $kind, ". No handler of it runs when this returns.")]
        /// Task context, sleeps.
        ///
        /// # Errors
        /// [`ProbeError::AtomicContext`].
        pub fn $unregister$(<$generic: Copy + Default + Send + 'static>)?(
            probe: &'static $type,
        ) -> Result<(), ProbeError> {
            PROBES.unregister(probe)
        }

        #[doc = concat!("Registers several ", $kind, "s, all or none.")]
        /// Task context, may sleep.
        ///
        /// # Errors
        /// That of the first one refused; nothing has changed then.
        pub fn $register_all$(<$generic: Copy + Default + Send + 'static>)?(
            probes: &[&'static $type],
        ) -> Result<(), ProbeError> {
            PROBES.register_batch(probes)
        }

        #[doc = concat!("Unregisters several ", $kind, "s with one wait.")]
        /// Task context, sleeps.
        ///
        /// # Errors
        /// [`ProbeError::AtomicContext`].
        pub fn $unregister_all$(<$generic: Copy + Default + Send + 'static>)?(
            probes: &[&'static $type],
        ) -> Result<(), ProbeError> {
            PROBES.unregister_batch(probes)
        }

        #[doc = concat!("Lets a disabled ", $kind, " fire again.")]
        /// Task context, may sleep.
        ///
        /// # Errors
        /// [`ProbeError::NotRegistered`], [`ProbeError::Gone`], [`ProbeError::AtomicContext`].
        pub fn $enable$(<$generic: Copy + Default + Send + 'static>)?(
            probe: &$type,
        ) -> Result<(), ProbeError> {
            PROBES.enable(probe)
        }

        #[doc = concat!("Keeps a ", $kind, " from firing; does not wait for running handlers.")]
        /// Task context, may sleep.
        ///
        /// # Errors
        /// [`ProbeError::NotRegistered`], [`ProbeError::Gone`], [`ProbeError::AtomicContext`].
        pub fn $disable$(<$generic: Copy + Default + Send + 'static>)?(
            probe: &$type,
        ) -> Result<(), ProbeError> {
            PROBES.disable(probe)
        }
    };
}

linux_api!(
    "kprobe", Kprobe;
    register_kprobe unregister_kprobe
    register_kprobes unregister_kprobes
    enable_kprobe disable_kprobe
);
linux_api!(
    "jprobe", Jprobe;
    register_jprobe unregister_jprobe
    register_jprobes unregister_jprobes
    enable_jprobe disable_jprobe
);
linux_api!(
    "kretprobe", Kretprobe<D>, D;
    register_kretprobe unregister_kretprobe
    register_kretprobes unregister_kretprobes
    enable_kretprobe disable_kretprobe
);
