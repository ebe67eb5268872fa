//! How a script is compiled.

/// How a script is compiled.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether the kernel's answers come from debug information, so that results have types. If
    /// not, `retval` is the register.
    pub debug_info: bool,
    /// The most keys of a map; of one for each CPU, on each.
    pub map_keys: u32,
    /// The most bytes that are kept of a text; of one inside of another value, at most 64.
    pub text_bytes: u32,
    /// The most bytes that are kept of the elements of a slice or an array.
    pub slice_bytes: u32,
    /// The most frames of a call stack, and how many stacks are kept.
    pub stack_frames: u32,
    pub stacks: u32,
    /// The most addresses for which a clause is compiled separately.
    pub most_places: usize,
    /// Whether the stack has room for another level of the text
    /// ([`trace_language::BYTES_OF_LEVEL`]).
    pub has_room: fn() -> bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            debug_info: true,
            map_keys: 4096,
            text_bytes: 200,
            slice_bytes: 64,
            stack_frames: 48,
            stacks: 2048,
            most_places: 1024,
            has_room: || true,
        }
    }
}
