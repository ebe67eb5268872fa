//! Builds the kernel into a bootable image and runs it in QEMU: the library behind `cargo run` and `cargo test`.
//!
//! ```text
//!   options ──► prerequisites ──► cargo ────────► image ──────────► qemu ─────► guest
//!   what is     rustup parts,     kernel,         initramfs and     command     starts it, streams the
//!   asked for   QEMU, firmware    programs,       disk images       line        serial line, tells the end
//!                                 `boot_loader`   (`disk`)
//! ```
//!
//! [`bochs`] takes the place of `qemu` where a second emulator is asked for.
//!
//! # Invariants
//! 1. Nothing is started before the whole command line has been found good.
//! 2. No child process outlives this one, however it ends (`children`).
//! 3. A file that others use appears under its name only when it is whole, and is rewritten only when what it is made
//!    from has changed; so runs may overlap, and a run without changes goes straight to QEMU.
//! 4. Every failure is one sentence that says what to do, printed last. Progress and reasons go to standard error;
//!    standard output carries the guest's serial line and nothing else.

pub mod bochs;
pub mod boot_loader;
pub mod cargo;
pub mod children;
pub mod disk;
pub mod guest;
pub mod hit_path;
pub mod image;
pub mod layout;
pub mod options;
pub mod prerequisites;
pub mod progress;
pub mod qemu;
