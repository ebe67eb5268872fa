//! What a kernel says of itself in its welcome: lines `KEY=VALUE`.
//!
//! ```text
//!   kernel=NAME                           build_id=HEX     slide=HEX
//!   cpus=N       clock_hz=N      tick_nanoseconds=N        most_script_bytes=N
//!   has=WORD WORD …              event=GROUP:EVENT ⇥ FUNCTION ⇥ entry|return ⇥ FIELD=EXPRESSION …
//! ```
//!
//! Lines with other keys are ignored, so that a kernel may say more than a tool asks.
//!
//! # Contexts
//! Any. Nothing allocates.

use core::fmt::{self, Write};

/// What a kernel can do for a script, beyond programs at instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Programs at the return of functions.
    Returns,
    /// Records that come while the trace runs.
    Records,
    /// Programs at an interval, on one CPU.
    Intervals,
    /// Programs at an interval, on each CPU, that see what the timer interrupted.
    Profiles,
    /// Call stacks of the kernel.
    KernelStacks,
    /// Call stacks of the program in user mode.
    UserStacks,
    /// Reading memory of the program in user mode.
    UserMemory,
    /// Numbers and names of tasks.
    Tasks,
    /// Programs at places of the program in user mode.
    UserProbes,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Returns,
        Self::Records,
        Self::Intervals,
        Self::Profiles,
        Self::KernelStacks,
        Self::UserStacks,
        Self::UserMemory,
        Self::Tasks,
        Self::UserProbes,
    ];

    /// Its word in the line `has=`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Returns => "returns",
            Self::Records => "records",
            Self::Intervals => "intervals",
            Self::Profiles => "profiles",
            Self::KernelStacks => "kernel_stacks",
            Self::UserStacks => "user_stacks",
            Self::UserMemory => "user_memory",
            Self::UserProbes => "user_probes",
            Self::Tasks => "tasks",
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// A set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u16);

impl Capabilities {
    /// The set of those.
    pub const fn of(list: &[Capability]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < list.len() {
            bits |= list[at].bit();
            at += 1;
        }
        Self(bits)
    }

    /// The set with another one.
    #[must_use]
    pub const fn with(self, capability: Capability) -> Self {
        Self(self.0 | capability.bit())
    }

    /// Whether it is among them.
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & capability.bit() != 0
    }

    fn parse(words: &str) -> Self {
        let words = words.split_ascii_whitespace();
        let bits = words.filter_map(|word| {
            let known = Capability::ALL.into_iter();
            let mut found = known.filter(|capability| capability.word() == word);
            Some(found.next()?.bit())
        });
        Self(bits.fold(0, |all, bit| all | bit))
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Capability::ALL.into_iter();
        let mut separator = "";
        for capability in all.filter(|capability| self.has(*capability)) {
            write!(f, "{separator}{}", capability.word())?;
            separator = " ";
        }
        Ok(())
    }
}

/// The number that the linker has given a kernel's file (`.note.gnu.build-id`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BuildId {
    bytes: [u8; Self::MOST],
    length: usize,
}

impl BuildId {
    /// The most bytes of one.
    pub const MOST: usize = 32;

    /// One of these bytes. None: it is empty or too long.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let mut own = [0; Self::MOST];
        own.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let length = bytes.len();
        (length > 0).then_some(Self { bytes: own, length })
    }

    /// The one in a section of notes (elf(5): sizes of name and content, type; then both, each
    /// filled up to 4 bytes). None: there is none.
    pub fn in_notes(notes: &[u8]) -> Option<Self> {
        const HEADER: usize = 12;
        /// NT_GNU_BUILD_ID.
        const TYPE: u32 = 3;
        let mut rest = notes;
        while let Some(header) = rest.first_chunk::<HEADER>() {
            let word = |at: usize| {
                let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
                u32::from_le_bytes(bytes)
            };
            let (name_bytes, content_bytes) = (word(0) as usize, word(4) as usize);
            let content_at = HEADER.checked_add(name_bytes.checked_next_multiple_of(4)?)?;
            let end = content_at.checked_add(content_bytes)?;
            let name = rest.get(HEADER..HEADER.checked_add(name_bytes)?)?;
            let content = rest.get(content_at..end)?;
            if word(8) == TYPE && name == b"GNU\0" {
                return Self::of(content);
            }
            rest = rest.get(end.checked_next_multiple_of(4)?..)?;
        }
        None
    }

    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::MOST];
        let text = text.as_bytes();
        let length = text.len() / 2;
        let digits = text.chunks(2).zip(bytes.get_mut(..length)?.iter_mut());
        for (pair, byte) in digits {
            let pair = str::from_utf8(pair).ok()?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        let whole = text.len().is_multiple_of(2);
        whole.then(|| Self::of(&bytes[..length]))?
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.bytes[..self.length].iter();
        bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About<'a> {
    /// Its name, for messages: one line.
    pub kernel: &'a str,
    pub cpus: u32,
    /// Ticks of the clock of records in a second.
    pub clock_hz: u64,
    /// The time between two ticks of a CPU's timer. 0: it has no profiles.
    pub tick_nanoseconds: u64,
    /// None: the kernel does not know it, so its file cannot be checked.
    pub build_id: Option<BuildId>,
    /// Where its code runs, as a distance from where it was linked to. Wraps at 64 bits.
    pub slide: u64,
    /// The most bytes of a script that it has room for.
    pub most_script_bytes: u32,
    pub capabilities: Capabilities,
    /// Its event sources, a line for each: the lines `event=` without that word.
    pub events: Events<'a>,
}

/// Lines that name event sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events<'a> {
    /// Only these lines.
    Lines(&'a str),
    /// Those lines `event=` that are among others.
    Among(&'a str),
}

impl Default for Events<'_> {
    fn default() -> Self {
        Self::Lines("")
    }
}

impl<'a> Events<'a> {
    /// The lines.
    pub fn lines(self) -> impl Iterator<Item = &'a str> {
        let (text, marker) = match self {
            Self::Lines(text) => (text, ""),
            Self::Among(text) => (text, "event="),
        };
        let lines = text
            .lines()
            .filter_map(move |line| line.strip_prefix(marker));
        lines.filter(|line| !line.is_empty())
    }
}

impl<'a> About<'a> {
    /// Reads the text of a welcome.
    pub fn parse(text: &'a str) -> Self {
        let mut about = Self {
            events: Events::Among(text),
            ..Self::default()
        };
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let number = || value.parse().unwrap_or(0);
            match key {
                "kernel" => about.kernel = value,
                "cpus" => about.cpus = value.parse().unwrap_or(0),
                "clock_hz" => about.clock_hz = number(),
                "tick_nanoseconds" => about.tick_nanoseconds = number(),
                "build_id" => about.build_id = BuildId::parse(value),
                "slide" => about.slide = u64::from_str_radix(value, 16).unwrap_or(0),
                "most_script_bytes" => about.most_script_bytes = value.parse().unwrap_or(0),
                "has" => about.capabilities = Capabilities::parse(value),
                _ => {}
            }
        }
        about
    }
}

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("kernel=")?;
        let mut visible = self.kernel.chars().filter(|letter| !letter.is_control());
        visible.try_for_each(|letter| f.write_char(letter))?;
        writeln!(f, "\ncpus={}\nclock_hz={}", self.cpus, self.clock_hz)?;
        writeln!(f, "tick_nanoseconds={}", self.tick_nanoseconds)?;
        if let Some(id) = self.build_id {
            writeln!(f, "build_id={id}")?;
        }
        writeln!(f, "slide={:x}", self.slide)?;
        writeln!(f, "most_script_bytes={}", self.most_script_bytes)?;
        writeln!(f, "has={}", self.capabilities)?;
        let mut events = self.events.lines();
        events.try_for_each(|line| writeln!(f, "event={line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn what_a_kernel_says_is_read_as_it_was_written() {
        let about = About {
            kernel: "a kernel 1.0",
            cpus: 4,
            clock_hz: 3_000_000_000,
            tick_nanoseconds: 4_000_000,
            build_id: BuildId::of(&[0, 0x1a, 0xff]),
            slide: u64::MAX - 0xfff,
            most_script_bytes: 1 << 20,
            capabilities: Capabilities::of(&[Capability::Returns, Capability::Tasks]),
            events: Events::Lines("a:b\tf\tentry\tx=arg0\nc:d\tg\treturn\n"),
        };
        let text = about.to_string();
        let read = About::parse(&text);
        let same = About {
            events: read.events,
            ..about
        };
        assert_eq!(read, same);
        assert!(read.events.lines().eq(about.events.lines()), "{text}");
        assert_eq!(read.events.lines().count(), 2);
        assert!(text.contains("build_id=001aff\n"), "{text}");
    }

    #[test]
    fn what_is_not_said_is_not_there() {
        let about = About::parse("has=returns flying tasks\nbuild_id=xyz\nnews=1\nstray\n");
        let has = |capability| about.capabilities.has(capability);
        let words = [Capability::Returns, Capability::Tasks, Capability::Records].map(has);
        assert_eq!(words, [true, true, false]);
        assert_eq!((about.build_id, about.cpus), (None, 0));
    }

    #[test]
    fn a_build_id_is_found_among_notes() {
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let mut bytes = Vec::new();
            for word in [name.len() as u32, content.len() as u32, kind] {
                bytes.extend(word.to_le_bytes());
            }
            for part in [name, content] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let other = note(b"Linux\0", 3, &[1, 2, 3]);
        let wanted = note(b"GNU\0", 3, &[4, 5, 6, 7, 8]);
        let found = BuildId::in_notes(&[&*other, &wanted].concat());
        assert_eq!(found, BuildId::of(&[4, 5, 6, 7, 8]));
        for cut in 0..wanted.len() - 3 {
            assert_eq!(BuildId::in_notes(&wanted[..cut]), None, "{cut}");
        }
        assert_eq!(BuildId::in_notes(&[0xff; 40]), None);
        assert_eq!(BuildId::of(&[]), None);
        assert_eq!(BuildId::of(&[0; 33]), None);
    }
}
