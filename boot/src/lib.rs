//! Builds the kernel into a bootable image and runs it in QEMU. `cargo run` and `cargo test` use
//! this library.
//!
//! ```text
//!   options ──► prerequisites ──► cargo ────────► image ──────────► qemu ─────► guest
//!   wishes of   rustup parts,     kernel,         initramfs and     command     starts it, streams
//!   the user    QEMU, firmware    programs,       disk images       line        the serial line,
//!                                 `boot_loader`   (`disk`)                      tells the end
//! ```
//!
//! [`bochs`] takes the place of `qemu` if a second emulator is requested. The tracer's link to a
//! guest that traces itself is not here but in `tracer/link`, which a plain run does not need.
//!
//! # Invariants
//! 1. Nothing is started before the whole command line has been found good.
//! 2. No child process outlives this one, however it ends (`children`).
//! 3. A file that others use appears under its name only when it is whole. It is rewritten only
//!    when its sources have changed. So runs may overlap, and a run without changes goes straight
//!    to QEMU.
//! 4. Every failure is one sentence that says what to do, printed last. Progress and reasons go to
//!    standard error. Only the guest's serial line goes to standard output.

pub mod bochs;
pub mod boot_loader;
pub mod cargo;
pub mod children;
pub mod disk;
pub mod firmware;
pub mod function_notes;
pub mod guest;
pub mod hit_path;
pub mod image;
pub mod layout;
pub mod options;
pub mod prerequisites;
pub mod progress;
pub mod qemu;
pub mod tracer;
