//! The routines in assembly: records, and maps by a word.
//!
//! They do what `Ring::reserve` and `Ring::commit` do ([`crate::records`] says why that is right),
//! in the fewest instructions, because each hit of an event pays for each of them.
//!
//! # Invariants
//! ROUTINE-1. They are routines in the sense of [`bpf_compiler::Routine`]: they change `rax`,
//!     `rcx`, `rdx`, `rsi`, `rdi` and the flags. DF and AC may be set until one calls C code.
//!
//! # Contexts
//! As for all entry points.

/// Reserves, or goes to label 8 if this is not the usual case. Compiled code has asked whether
/// records are taken ([`bpf_compiler::Machine::records_off`]). `rdx`: the record's bytes, and
/// 1 << 32 for its number. Then `rdi` is the program's record, and the header of the ring's record
/// has its time and its number. Changes `rax`, `rcx` and `rdx`.
#[doc(hidden)]
#[macro_export]
macro_rules! record_reserve {
    () => {
        "
    mov rdi, gs:[{ring}]
    mov rax, [rdi + {reserved}]
    add rdx, rax
    # The end of the page, less 1, is not below the end of the record. A record that ends with the
    # page is left to the slow path.
    lea ecx, [rax - 1]
    or ecx, {page_mask}
    cmp ecx, edx
    jb 8f
    cmpxchg [rdi + {reserved}], rdx
    jne 8f
    mov ecx, eax
    lea rdi, [rdi + rcx + {payload}]
    shr rax, 32
    mov [rdi - {in_front} + 4], eax
    rdtsc
    mov [rdi - {in_front} + 8], eax
    mov [rdi - {in_front} + 12], edx
    "
    };
}

/// Writes the rest of the header, and the prefix, of a record of `esi` bytes.
#[doc(hidden)]
#[macro_export]
macro_rules! record_begin_of_size {
    () => {
        "
    imul eax, esi, 256
    add eax, ({prefix} << 8) + {busy}
    mov [rdi - {in_front}], eax
    mov [rdi - {prefix}], esi
    mov [rdi - {prefix} + 4], esi
    "
    };
}

/// Writes the common header of an event, except its type. `$flags`: lines that add flags to `eax`.
/// Changes `rax`.
#[doc(hidden)]
#[macro_export]
macro_rules! record_shown_words {
    ($flags:expr) => {
        concat!(
            "
    movzx eax, byte ptr gs:[{need_resched}]
    or al, gs:[{interrupt}]
    ",
            $flags,
            "
    mov ah, gs:[{preempt_count}]
    mov [rdi + 2], ax
    mov eax, gs:[{pid}]
    mov [rdi + 4], eax
    "
        )
    };
}

/// Ends the record at `rdi`. Goes to label 2, or to 3 where `rax` is to be published by
/// `trace_publish_slowly`. If the record interrupted another one, that one's writer publishes both.
/// Changes `rax` and `rsi`.
#[doc(hidden)]
#[macro_export]
macro_rules! record_submit {
    () => {
        "
    mov rsi, gs:[{ring}]
    inc byte ptr [rdi - {in_front}]
    lea eax, [rdi - {payload}]
    sub eax, esi
    cmp [rsi + {committed}], eax
    jne 2f
    mov rax, [rsi + {reserved}]
    mov [rsi + {committed}], rax
    cmp [rsi + {reserved}], rax
    jne 3f
    "
    };
}

/// The whole of a routine that reserves: its lines, operands of its own, and those of
/// [`record_reserve!`](crate::record_reserve!) and
/// [`record_begin_of_size!`](crate::record_begin_of_size!). `$slowly` does in Rust, from the
/// beginning, what is not usual.
#[doc(hidden)]
#[macro_export]
macro_rules! reserving {
    ($agent:ty, $slowly:ident, $($line:expr),+ $(; $($name:ident = const $value:expr),+)?) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            $($line,)+
            $crate::call_slowly!("{slowly}"),
            ".cfi_endproc",
            ring = const $crate::per_cpu::ring::<$agent>(),
            reserved = const $crate::records::RESERVED,
            page_mask = const $crate::records::PAGE_MASK,
            payload = const $crate::records::PAYLOAD,
            in_front = const $crate::records::IN_FRONT,
            prefix = const $crate::records::PREFIX_BYTES,
            busy = const $crate::records::BUSY,
            $($($name = const $value,)+)?
            slowly = sym $slowly,
        )
    };
}

/// The same for an event: with the operands of
/// [`record_shown_words!`](crate::record_shown_words!).
#[doc(hidden)]
#[macro_export]
macro_rules! reserving_event {
    ($agent:ty, $($line:expr),+ $(; $($name:ident = const $value:expr),+)?) => {
        $crate::reserving!(
            $agent,
            trace_event_slowly,
            $($line),+;
            need_resched = const <$agent as $crate::Agent>::SHOWN.need_resched,
            interrupt = const <$agent as $crate::Agent>::SHOWN.interrupt,
            preempt_count = const <$agent as $crate::Agent>::SHOWN.preempt_count,
            pid = const $crate::per_cpu::task::<$agent>()
            $(, $($name = const $value),+)?
        )
    };
}

/// An operation on this CPU's table of the map in `rdi`. The key, of 8 bytes, is in `rsi`.
#[doc(hidden)]
#[macro_export]
macro_rules! by_word {
    ($agent:ty, $name:ident, $at_home:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "mov eax, gs:[{cpu}]",
                "mov rdi, [rdi + 8 * rax]",
                "jmp {at_home}",
                ".cfi_endproc",
                cpu = const $crate::per_cpu::number::<$agent>(),
                at_home = sym $crate::helpers::at_home::$at_home,
            )
        }
    };
}

/// The routines.
#[doc(hidden)]
#[macro_export]
macro_rules! routines {
    ($agent:ty) => {
        /// Reserves a record of constant size. `rsi`: the size; `rdx`: as in `reserve!`. Returns
        /// it, or null.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn trace_record_of_size() {
            $crate::reserving!($agent,
                trace_ring_reserve_slowly,
                $crate::record_reserve!(),
                $crate::record_begin_of_size!(),
                "mov rax, rdi",
                "ret",
                // The ways that are not usual: in Rust, the same is done again from the beginning.
                "8:",
                "mov rdi, rsi"
            )
        }

        /// The same with the common header. `rsi`: the size, and in the upper half the type.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn trace_event_of_size() {
            $crate::reserving_event!($agent,
                $crate::record_reserve!(),
                $crate::record_begin_of_size!(),
                "shr rsi, 32",
                "mov [rdi], si",
                $crate::record_shown_words!(""),
                "mov rax, rdi",
                "ret",
                // The ways that are not usual: in Rust, the same is done again from the beginning.
                "8:",
                "mov edx, 0",
                "mov rdi, rsi",
                "shr rdi, 32",
                "mov esi, esi"
            )
        }

        /// The same with room after it. `rsi`: the size, and in the upper half the type; `rdx`: the
        /// room; `rcx`: the most room that a record of this size can have. Its frame is the size
        /// with the room, from where `reserve!` needs the registers to where they are free again.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn trace_event_with_room() {
            $crate::reserving_event!($agent,
                "cmp rdx, rcx",
                "ja 9f",
                "add edx, esi",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "add edx, {around}",
                "and edx, -{alignment}",
                "bts rdx, 32",
                $crate::record_reserve!(),
                ".cfi_remember_state",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "imul eax, ecx, 256",
                "add eax, ({prefix} << 8) + {busy}",
                "mov [rdi - {in_front}], eax",
                "mov [rdi - {prefix}], esi",
                "mov [rdi - {prefix} + 4], ecx",
                "shr rsi, 32",
                "mov [rdi], si",
                $crate::record_shown_words!(""),
                "mov rax, rdi",
                "ret",
                // The ways that are not usual: in Rust, the same is done again from the beginning.
                "8:",
                ".cfi_restore_state",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "sub edx, esi",
                "9:",
                "mov rdi, rsi",
                "shr rdi, 32",
                "mov esi, esi";
                around = const $crate::records::IN_FRONT + $crate::records::ALIGNMENT - 1,
                alignment = const $crate::records::ALIGNMENT
            )
        }

        /// The helper `Helper::RingSubmit`: the record is in `rdi`.
        ///
        /// # Safety
        /// 1. A verified program calls it, with its CPU kept, and a record that it has reserved.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn trace_ring_submit() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::record_submit!(),
                "2: ret",
                "3: mov rdi, rax",
                $crate::call_slowly!("{slowly}"),
                ".cfi_endproc",
                ring = const $crate::per_cpu::ring::<$agent>(),
                in_front = const $crate::records::IN_FRONT,
                payload = const $crate::records::PAYLOAD,
                committed = const $crate::records::COMMITTED,
                reserved = const $crate::records::RESERVED,
                slowly = sym trace_publish_slowly,
            )
        }

        $crate::by_word!($agent, trace_find_by_word, hash_find_word_at_home);
        $crate::by_word!($agent, trace_set_by_word, hash_set_word_at_home);
        $crate::by_word!($agent, trace_add_by_word, hash_add_word_at_home);
        $crate::by_word!($agent, trace_delete_by_word, hash_delete_word_at_home);

        unsafe extern "C" fn trace_ring_reserve_slowly(size: u64) -> *mut u8 {
            $crate::records::ring_reserve::<$agent>(size)
        }

        unsafe extern "C" fn trace_event_slowly(kind: u64, size: u64, room: u64) -> *mut u8 {
            $crate::records::reserve_event::<$agent>(kind, size, room)
        }

        unsafe extern "C" fn trace_publish_slowly(last: u64) {
            $crate::records::publish_slowly::<$agent>(last);
        }
    };
}
