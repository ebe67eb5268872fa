//! The assembly of a watchpoint's hit.
//!
//! [`debug_entry!`](crate::debug_entry!) defines `kprobe_debug`, where the gate of #DB leads. It
//! saves two registers. If DR6 names one debug register and nothing else, and kernel code has
//! raised the trap, it jumps to the stub that the watchpoint names:
//!
//! ```text
//!   kprobe_debug ── a step, several matches, ring 3, nobody's ──► the kernel's own entry
//!      │ one watchpoint: its stub
//!      ├─► kprobe_watch_count         counts
//!      ├─► kprobe_watch_handler_N     all registers, guard, the handler; N: the watched bytes
//!      ├─► kprobe_watch_routine_N     five registers, no guard: call the routine
//!      └─► kprobe_watch_any           five registers; the kernel's own entry: movable
//! ```
//!
//! The kernel's entry leads to `Hits::on_debug`, which serves any hit. The stubs do the same as
//! `Watches::serve` in `hit/watchpoints.rs`. They leave to it the hits that they cannot serve: of a
//! displaced instruction, and on top of a hit whose rest is still to come.
//!
//! # The frame
//! As that of a breakpoint (`asm/breakpoint.rs`), but `ip` is where the code goes on. Below it a
//! handler's stub has a [`Touched`](crate::Touched), and a routine's a
//! [`WatchpointFrame`](crate::watchpoint::WatchpointFrame):
//!
//! ```text
//!   handler                          routine
//!   +0x28  r15   <- the `PtRegs`     +0x18  ax   <- rsp where a stub begins
//!   +0x20  watchpoint                +0x10  new
//!   +0x18  new                       +0x08  old
//!   +0x10  old                       +0x00  watchpoint  <- rsp at the call: 16-aligned
//!   +0x08  addr
//!   +0x00  ip    <- the `Touched`, and rsp at the call: 16-aligned
//! ```

/// Defines `kprobe_debug` for a [`Platform`](crate::Platform) whose registry is the static
/// `$probes`, and `with_debug_entry`, which adds its stubs to the entry points. At most once a
/// program; the gate of vector 1 leads there, an interrupt gate without a stack of its own. It is
/// for kernels that want hits of watchpoints to be cheap. The others call
/// [`Hits::on_debug`](crate::hit::Hits::on_debug) from an entry of their own, and expand nothing.
///
/// - `owner`: the path of a [`GateOwner`](crate::gates::GateOwner), the kernel's own stub for #DB.
///   It gets all other traps as the processor left them, for example those of single steps and of
///   ring 3, and asks [`Hits::on_debug`](crate::hit::Hits::on_debug).
/// - `other`, in place of `owner`: where all other traps go. On arrival the stack and the registers
///   are as at `other` of [`breakpoint_entry!`](crate::breakpoint_entry!), but `rdx` is free.
/// - `clear_ac`, `per_cpu`: as for [`breakpoint_entry!`](crate::breakpoint_entry!).
#[macro_export]
macro_rules! debug_entry {
    ($platform:ty, $probes:path, owner = $owner:path, clear_ac = $clear_ac:literal
        $(, per_cpu = $kind:tt $per_cpu:path)?) => {
        $crate::other_debug!($owner);
        $crate::debug_entry!(
            $platform, $probes, other = kprobe_other_debug, clear_ac = $clear_ac
            $(, per_cpu = $kind $per_cpu)?
        );
    };
    ($platform:ty, $probes:path, other = $other:path, clear_ac = $clear_ac:literal) => {
        $crate::debug_entry!(
            $platform,
            $probes,
            other = $other,
            clear_ac = $clear_ac,
            per_cpu = const $crate::asm::NO_SYMBOL
        );
    };
    ($platform:ty, $probes:path, other = $other:path, clear_ac = $clear_ac:literal,
        per_cpu = $kind:tt $per_cpu:path) => {
        ::core::arch::global_asm!(
            $crate::stub_macros!(),
            ".macro clear_ac",
            $clear_ac,
            ".endm",
            $crate::watchpoint_stubs!(),
            $crate::end_of_stub_macros!(),
            // Whether symbols have addresses of 32 bits.
            fixed = const <$platform as $crate::Platform>::IN_TOP_2_GIB as u8,
            // The watchpoints.
            probes = sym $probes,
            by_status = const $crate::asm::layout::watches_offset::<$platform>()
                + $crate::asm::layout::WATCHES_BY_STATUS,
            slots = const $crate::asm::layout::watches_offset::<$platform>()
                + $crate::asm::layout::WATCHES_SLOTS,
            // A watchpoint.
            stub = const $crate::asm::layout::WATCH_STUB,
            routine = const $crate::asm::layout::WATCH_ROUTINE,
            handler = const $crate::asm::layout::WATCH_HANDLER,
            addr = const $crate::asm::layout::WATCH_ADDR,
            last = const $crate::asm::layout::WATCH_LAST,
            hits = const $crate::asm::layout::WATCH_HITS,
            nmissed = const $crate::asm::layout::WATCH_NMISSED,
            // Debug registers.
            no_cause = const $crate::asm::layout::NO_CAUSE,
            last_match = const $crate::asm::layout::LAST_MATCH,
            all_off = const $crate::asm::layout::ALL_OFF,
            // A frame of which the registers down to `ax` are there, and a whole one.
            lookup_ip = const $crate::asm::layout::LOOKUP_IP,
            lookup_cs = const $crate::asm::layout::LOOKUP_CS,
            ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
            // This CPU's data.
            per_cpu = $kind $per_cpu,
            guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
            running = const $crate::PerCpu::running_gs_offset::<$platform>(),
            finishing = const $crate::PerCpu::finishing_gs_offset::<$platform>(),
            debug_traps = const $crate::PerCpu::debug_traps_gs_offset::<$platform>(),
            watching = const $crate::PerCpu::watching_gs_offset::<$platform>(),
            other = sym $other,
        );

        unsafe extern "C" {
            /// Where the gate of #DB leads.
            pub fn kprobe_debug();
            fn kprobe_watch_any();
            fn kprobe_watch_count();
            fn kprobe_watch_handler_1();
            fn kprobe_watch_handler_2();
            fn kprobe_watch_handler_4();
            fn kprobe_watch_handler_8();
            fn kprobe_watch_routine_1();
            fn kprobe_watch_routine_2();
            fn kprobe_watch_routine_4();
            fn kprobe_watch_routine_8();
        }

        fn with_debug_entry(entry: $crate::asm::EntryPoints) -> $crate::asm::EntryPoints {
            $crate::asm::EntryPoints {
                watch: $crate::asm::WatchStubs {
                    any: kprobe_watch_any as *const () as u64,
                    count: kprobe_watch_count as *const () as u64,
                    handler: [
                        kprobe_watch_handler_1 as *const () as u64,
                        kprobe_watch_handler_2 as *const () as u64,
                        kprobe_watch_handler_4 as *const () as u64,
                        kprobe_watch_handler_8 as *const () as u64,
                    ],
                    routine: [
                        kprobe_watch_routine_1 as *const () as u64,
                        kprobe_watch_routine_2 as *const () as u64,
                        kprobe_watch_routine_4 as *const () as u64,
                        kprobe_watch_routine_8 as *const () as u64,
                    ],
                },
                ..entry
            }
        }
    };
}

/// Defines `kprobe_other_debug`, the way of a #DB that `kprobe_debug` has not served to the owner
/// of the gate.
#[macro_export]
macro_rules! other_debug {
    ($owner:path) => {
        /// Where a #DB goes that is no watchpoint's alone.
        ///
        /// # Safety
        /// Never called: `kprobe_debug` jumps here.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn kprobe_other_debug() {
            ::core::arch::naked_asm!(
                $crate::begin_at_other!(),
                $crate::end_in_owner!(),
                owner = sym $owner,
            )
        }
    };
}

/// The entry, and the stubs that it jumps to.
#[macro_export]
macro_rules! watchpoint_stubs {
    () => {
        r#"
# Saves the other registers that are free at `other` and in a routine, and -1.
.macro complete_lookup_frame
    mov qword ptr [rsp + 40], -1
    .irp register, rsi, rdx, rcx
    mov [rsp + .Lplace_of_\register], \register
    .cfi_rel_offset \register, .Lplace_of_\register
    .endr
.endm
    .set .Lplace_of_rsi, 24
    .set .Lplace_of_rdx, 16
    .set .Lplace_of_rcx, 8

    function kprobe_debug
    pushed_frame 5
    sub rsp, 48
    .cfi_adjust_cfa_offset 48
    mov [rsp + 32], rdi
    .cfi_rel_offset rdi, 32
    mov [rsp], rax
    .cfi_rel_offset rax, 0
    test byte ptr [rsp + {lookup_cs}], 3
    jnz kprobe_watch_any
    mov rax, dr6
    xor eax, {no_cause}
    cmp eax, {last_match}
    ja kprobe_watch_any
    .if {fixed}
    mov rdi, [{probes} + rax * 8 + {by_status}]
    .else
    lea rdi, [rip + {probes} + {by_status}]
    mov rdi, [rdi + rax * 8]
    .endif
    # None: no cause, or several matches.
    test rdi, rdi
    jz kprobe_watch_any
    # As `Watches::pause` asks.
    cmp byte ptr gs:[{per_cpu} + {watching}], 0
    je kprobe_watch_any
    jmp [rdi + {stub}]
    end_function kprobe_debug

# Begins a function to which `kprobe_debug` jumps.
.macro debug_frame
    pushed_frame 11
    .cfi_offset rdi, -56
    .cfi_offset rax, -88
.endm

# A watchpoint that moves, and everything that is no hit of one watchpoint alone.
    function kprobe_watch_any
    debug_frame
    complete_lookup_frame
    jmp {other}
    end_function kprobe_watch_any

# From here on this CPU has no hits. Changes rax.
.macro begin_watch
    inc qword ptr gs:[{per_cpu} + {debug_traps}]
    mov eax, {all_off}
    mov dr7, rax
.endm

# From here on it has. DR7 is written after DR6, as in `Watches::serve`. Changes rax.
.macro end_watch
    mov eax, {no_cause}
    mov dr6, rax
    mov rax, gs:[{per_cpu} + {watching}]
    mov dr7, rax
.endm

# A displaced instruction's hit is told with the address that it has without the probe. Changes rax.
.macro unless_displaced
    mov rax, [rsp + {lookup_ip}]
    sub rax, [rip + {probes} + {slots}]
    cmp rax, [rip + {probes} + {slots} + 8]
    jb kprobe_watch_any
.endm

# Leaves rdx, the address; rsi, the value now; rcx, the one that the hit before has found.
.macro note_value bytes
    mov rdx, [rdi + {addr}]
    .if \bytes == 1
    movzx esi, byte ptr [rdx]
    .elseif \bytes == 2
    movzx esi, word ptr [rdx]
    .elseif \bytes == 4
    mov esi, [rdx]
    .else
    mov rsi, [rdx]
    .endif
    mov rcx, rsi
    xchg [rdi + {last}], rcx
.endm

# In each of them: rdi, the watchpoint. One without a handler.
    function kprobe_watch_count
    debug_frame
    begin_watch
    lock inc qword ptr [rdi + {hits}]
    end_watch
    mov rax, [rsp]
    .cfi_restore rax
    mov rdi, [rsp + 32]
    .cfi_restore rdi
    pop_words 6
    iretq
    end_function kprobe_watch_count

.macro watch_stubs bytes
# One with a handler.
    function kprobe_watch_handler_\bytes
    debug_frame
    unless_displaced
    # The handler would take the place of a hit whose rest is still to come.
    cmp qword ptr gs:[{per_cpu} + {finishing}], 0
    jne kprobe_watch_any
    complete_lookup_frame
    begin_watch
    note_value \bytes
    push_registers r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15
    cld
    clear_ac
    inc dword ptr gs:[{per_cpu} + {guard}]
    jnz .Lwatch_missed_\bytes
    lock inc qword ptr [rdi + {hits}]
    mov qword ptr gs:[{per_cpu} + {running}], 0
    mov rax, rsp
    push_word rdi
    push_word rsi
    push_word rcx
    push_word rdx
    push_word "qword ptr [rax + {ip}]"
    mov rsi, rax
    mov rdx, rsp
    call [rdi + {handler}]
    pop_words 5
.Lwatch_end_\bytes:
    dec dword ptr gs:[{per_cpu} + {guard}]
    end_watch
    resume_as_framed
.Lwatch_missed_\bytes:
    lock inc qword ptr [rdi + {nmissed}]
    jmp .Lwatch_end_\bytes
    end_function kprobe_watch_handler_\bytes

# One with a routine.
    function kprobe_watch_routine_\bytes
    debug_frame
    unless_displaced
    complete_lookup_frame
    begin_watch
    note_value \bytes
    lock inc qword ptr [rdi + {hits}]
    push_word rsi
    push_word rcx
    push_word rdi
    call [rdi + {routine}]
    pop_words 3
    end_watch
    pop_registers rax, rcx, rdx, rsi, rdi
    return_from_trap
    end_function kprobe_watch_routine_\bytes
.endm

    watch_stubs 1
    watch_stubs 2
    watch_stubs 4
    watch_stubs 8

    .irp name, clear_ac, complete_lookup_frame, debug_frame, begin_watch, end_watch
    .purgem \name
    .endr
    .irp name, unless_displaced, note_value, watch_stubs
    .purgem \name
    .endr
"#
    };
}
