//! The ground of a case: the memory that it may touch, and the addresses that it may go to.

use core::ops::Range;

use crate::Random;

/// The surroundings of a case.
pub struct Ground<'a> {
    /// Address of the code under test.
    pub at: u64,
    /// The bytes around it that are the case's own. All but its code are breakpoints.
    pub own: Range<u64>,
    /// Further breakpoints, within 2 GiB of the code.
    pub landing: Range<u64>,
    /// Pieces of writable memory, of equal length, a multiple of 8. Each access of a case goes to
    /// one of them, or to the stack. A 32-bit displacement reaches the first one.
    pub windows: &'a [Range<u64>],
    /// The live part of the stack; below it there is room for traps.
    pub stack: Range<u64>,
    /// Base of FS.
    pub fs_base: u64,
    /// Base of GS.
    pub gs_base: u64,
    /// Some addresses that are not mapped, with nothing mapped in the megabyte after each.
    pub holes: &'a [u64],
    /// Whether anything is mapped at an address.
    pub is_mapped: &'a dyn Fn(u64) -> bool,
    /// Whether the case runs in ring 0, where nothing protects the machine from it.
    pub ring0: bool,
    /// Whether it runs in the emulator, which gets some instructions wrong.
    pub emulated: bool,
}

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroundPlace {
    /// Memory of the case.
    Inside,
    /// Nothing at all, or at one of its ends: an access faults.
    Hole,
    /// Memory of others.
    Elsewhere,
}

impl Ground<'_> {
    /// The memory that an access of `len` bytes at `address` meets, for a case with window number
    /// `window`.
    pub fn place(&self, window: usize, address: u64, len: u64) -> GroundPlace {
        let of = |address: u64| {
            if self.windows[window].contains(&address) || self.stack.contains(&address) {
                GroundPlace::Inside
            } else if !is_canonical(address) || !(self.is_mapped)(address) {
                GroundPlace::Hole
            } else {
                GroundPlace::Elsewhere
            }
        };
        match (of(address), of(address.wrapping_add(len.max(1) - 1))) {
            (GroundPlace::Inside, GroundPlace::Inside) => GroundPlace::Inside,
            (GroundPlace::Elsewhere, _) | (_, GroundPlace::Elsewhere) => GroundPlace::Elsewhere,
            _ => GroundPlace::Hole,
        }
    }

    /// An address for an operand: most likely in the window, else near its edges or in a hole.
    pub(crate) fn operand(&self, random: &mut Random, window: usize) -> u64 {
        let window = &self.windows[window];
        let len = window.end - window.start;
        match random.below(32) {
            0 => self.hole(random),
            1 => window.end - random.below(16),
            2 => window.start.wrapping_sub(random.below(16)),
            n => {
                let middle = window.start + len / 4 + random.below(len / 2);
                if n % 2 == 0 { middle & !0xf } else { middle }
            }
        }
    }

    /// An address at which nothing is mapped.
    pub(crate) fn hole(&self, random: &mut Random) -> u64 {
        random.of(self.holes) + random.below(1 << 20)
    }

    /// A stack pointer with room above it.
    pub(crate) fn stack_pointer(&self, random: &mut Random) -> u64 {
        let len = self.stack.end - self.stack.start;
        let sp = self.stack.start + len / 4 + random.below(len / 4);
        if random.one_in(16) { sp } else { sp & !7 }
    }

    /// Flags that code may have.
    pub(crate) fn flags(&self, random: &mut Random) -> u64 {
        const STATUS_AND_DF: u64 = 0xcd5;
        const FIXED: u64 = 2;
        const IF: u64 = 1 << 9;
        let flags = random.next() & STATUS_AND_DF | FIXED;
        if !self.ring0 {
            return flags | IF;
        }
        // IF, TF, IOPL, NT, AC and ID, each in one of that many cases.
        let others = [
            (9, 2),
            (8, 32),
            (12, 16),
            (13, 16),
            (14, 16),
            (18, 8),
            (21, 8),
        ];
        others.iter().fold(flags, |flags, &(bit, n)| {
            flags | u64::from(random.one_in(n)) << bit
        })
    }

    /// Where a branch may go: to a breakpoint, or to where nothing can be fetched.
    pub(crate) fn target(&self, random: &mut Random) -> u64 {
        match random.below(16) {
            0 => self.hole(random),
            1 => self.windows[0].start + random.below(64),
            2 => self.stack.start + random.below(64),
            3 => 0x8000_0000_0000 + random.next() % (0xffff_0000_0000_0000),
            _ => self.landing.start + random.below(self.landing.end - self.landing.start),
        }
    }

    /// Whether code that arrives at `address` is stopped there.
    pub(crate) fn stops(&self, address: u64, code: &Range<u64>) -> bool {
        let is_data = |range: &Range<u64>| range.contains(&address);
        (self.own.contains(&address) && !code.contains(&address))
            || self.landing.contains(&address)
            || self.windows.iter().any(is_data)
            || is_data(&self.stack)
            || !is_canonical(address)
            || !(self.is_mapped)(address)
    }
}

/// Whether the upper 17 bits of `address` are equal.
fn is_canonical(address: u64) -> bool {
    matches!((address as i64) >> 47, 0 | -1)
}
