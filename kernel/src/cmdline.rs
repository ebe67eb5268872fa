//! The kernel command line: `name=value` arguments in Linux style (see [`params`]).
//!
//! The text comes from the fw_cfg file `opt/cmdline`. If there is none (Bochs, a real PC), it comes
//! from the file `/cmdline` of the initramfs. It is read once, at boot, and stays for good, so
//! values are `&'static str`.
//!
//! Every part of the kernel asks for its own names. If no part has asked for an argument by the end
//! of the boot, it has no effect, and [`report_unknown`] says that it is unknown.
//!
//! Any context may read, from [`init`] on; before that the line is empty.

use crate::{fw_cfg::FwCfg, pr_info, pr_warn};
use core::{
    cell::UnsafeCell,
    str,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
use params::{Arg, Args};

/// Longest command line in bytes; a longer one is cut.
pub const MAX_BYTES: usize = 16 * 1024;

/// How many arguments are tracked for the report of unknown ones. Later ones count as known.
const MAX_TRACKED: usize = 256;

static LINE: Line = Line {
    buffer: UnsafeCell::new([0; MAX_BYTES]),
    taken: AtomicBool::new(false),
    len: AtomicUsize::new(0),
};

/// One bit for each argument that a part of the kernel has asked for.
static KNOWN: [AtomicU64; MAX_TRACKED / 64] = [const { AtomicU64::new(0) }; MAX_TRACKED / 64];

struct Line {
    /// Written once, by [`init`]. The first `len` bytes are UTF-8 and never change again.
    buffer: UnsafeCell<[u8; MAX_BYTES]>,
    taken: AtomicBool,
    len: AtomicUsize,
}

// SAFETY: the one caller that finds `taken` clear writes the buffer. It sets `len` (Release) when
// it has done so, and the buffer is read up to `len` only.
unsafe impl Sync for Line {}

impl Line {
    fn text(&self) -> &str {
        // Acquire pairs with the Release in `set`.
        let len = self.len.load(Ordering::Acquire);
        // SAFETY: these bytes do not change any more.
        let bytes = unsafe { &(&*self.buffer.get().cast_const())[..len] };
        // SAFETY: `set` counts valid UTF-8 only.
        unsafe { str::from_utf8_unchecked(bytes) }
    }

    /// Lets `fill` write the line; `fill` returns the number of bytes. Only the first call has an
    /// effect.
    fn set(&self, fill: impl FnOnce(&mut [u8]) -> usize) {
        if self.taken.swap(true, Ordering::Relaxed) {
            return;
        }
        // SAFETY: only one caller finds `taken` clear, and `len` is still 0, so no other code
        // reads.
        let buffer = unsafe { &mut *self.buffer.get() };
        let len = fill(buffer);
        let len = match str::from_utf8(&buffer[..len]) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        self.len.store(len, Ordering::Release);
    }
}

/// Reads the command line. Call it once, at boot. `fallback` is the file `/cmdline` of the
/// initramfs.
pub fn init(fallback: Option<&[u8]>) {
    let mut given = 0;
    LINE.set(|buffer| {
        if let Some(mut device) = FwCfg::open()
            && let Some(file) = device.find("opt/cmdline")
        {
            given = file.size;
            return device.read(file, buffer);
        }
        let Some(file) = fallback else {
            return 0;
        };
        given = file.len();
        let len = given.min(MAX_BYTES);
        buffer[..len].copy_from_slice(&file[..len]);
        len
    });
    pr_info!("Command line: {}", text().trim_ascii());
    if text().len() < given {
        pr_warn!(
            "Command line: only {} of its {given} bytes are used (not UTF-8, or too long)",
            text().len()
        );
    }
}

/// The whole line as it was given.
pub fn text() -> &'static str {
    LINE.text()
}

/// The value of `name`, or `Some("")` if it has none. If `name` comes several times, the last one
/// counts.
pub fn get(name: &str) -> Option<&'static str> {
    matching(|arg| arg.is(name))
        .last()
        .map(|arg| arg.value.unwrap_or(""))
}

/// The arguments that `wanted` accepts, in their order. They count as known from now on.
pub fn matching(wanted: impl Fn(&Arg<'static>) -> bool) -> impl Iterator<Item = Arg<'static>> {
    Args::new(text())
        .enumerate()
        .filter_map(move |(index, arg)| {
            let found = wanted(&arg);
            if let Some(word) = KNOWN.get(index / 64).filter(|_| found) {
                word.fetch_or(1 << (index % 64), Ordering::Relaxed);
            }
            found.then_some(arg)
        })
}

/// Reports the arguments that no part has asked for. Call it when everything that reads the command
/// line has done so. `is_module_param` tells whether a module has a parameter: its values count as
/// known, because the module may be loaded later.
pub fn report_unknown(is_module_param: impl Fn(&str, &str) -> bool) {
    for (index, arg) in Args::new(text()).enumerate().take(MAX_TRACKED) {
        let asked_for = KNOWN[index / 64].load(Ordering::Relaxed) & 1 << (index % 64) != 0;
        let of_a_module = || {
            arg.module_param()
                .is_some_and(|(module, param)| is_module_param(module, param))
        };
        if !asked_for && !of_a_module() {
            pr_warn!("Command line: {arg} is unknown and ignored");
        }
    }
}
