//! Instructions whose effect lies outside registers and memory, or depends on the CPU: a write of
//! the GS base, one that is refused, locked ones from all CPUs at once, and long ones on per-CPU
//! data.

use alloc::{boxed::Box, vec, vec::Vec};
use core::{
    arch::naked_asm,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{
        percpu::{self, PerCpu},
        smp,
    },
    probes::{
        FaultVerdict, Kprobe, PreVerdict, PtRegs,
        StepMethod::{Translate, TrapFlag},
        register,
    },
    symbols,
    task::kthread::spawn_kthread,
};

use crate::tools::jumps::Optimization;

fn address(name: &str) -> u64 {
    symbols::lookup_name(name)
        .expect("a function of this file")
        .start
}

/// Has the GS base be `base` for two instructions, interrupts off, and returns the word there.
/// Where the write is: [`GS_WRITE`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn unusual_gs_base(base: *const u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "cli",
        "mov ecx, 0xc0000101",
        "rdmsr",
        "mov r8, rdx",
        "mov r9, rax",
        "mov rdx, rdi",
        "shr rdx, 32",
        "mov eax, edi",
        "wrmsr",
        "mov rsi, gs:[0]",
        "mov rdx, r8",
        "mov rax, r9",
        "wrmsr",
        "mov rax, rsi",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
    )
}

/// Where in [`unusual_gs_base`] the GS base is written.
const GS_WRITE: u32 = 0x18;

/// Writes a value that no processor takes for the address of the host's save area: one that no page
/// begins at. 1: it is refused.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn unusual_refused() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov ecx, 0xc0010117",
        "mov eax, 1",
        "xor edx, edx",
        "2: wrmsr",
        "xor eax, eax",
        "ret",
        "3: mov eax, 1",
        "ret",
        ".cfi_endproc",
        ".pushsection __ex_table, \"a\", @progbits",
        ".balign 8",
        ".quad 2b, 3b",
        ".popsection",
    )
}

/// Where in [`unusual_refused`] the write is.
const REFUSED_WRITE: u32 = 0xc;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// Counts [`COUNTER`] up `times` times.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn unusual_locked(times: u64) {
    naked_asm!(
        ".cfi_startproc",
        "nop",
        "2: lock inc qword ptr [rip + {counter}]",
        "dec rdi",
        "jnz 2b",
        "ret",
        ".cfi_endproc",
        counter = sym COUNTER,
    )
}

/// Copies `len` bytes to `to` from the beginning of this CPU's data on, from the last one down to
/// the first, by one instruction. Returns 1 + the CPU that the probe there says it is.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn unusual_per_cpu(to: *mut u8, len: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov rcx, rsi",
        "lea rsi, [rcx - 1]",
        "lea rdi, [rdi + rcx - 1]",
        "xor edx, edx",
        "std",
        "rep movsb byte ptr es:[rdi], byte ptr gs:[rsi]",
        "cld",
        "mov rax, rdx",
        "ret",
        ".cfi_endproc",
    )
}

/// Where in [`unusual_per_cpu`] the copy is.
const COPY: u32 = 0xf;

fn tell_cpu(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    regs.dx = 1 + percpu::cpu_id() as u64;
    PreVerdict::Execute
}

static HITS: AtomicU64 = AtomicU64::new(0);
static FAULT_AT: AtomicU64 = AtomicU64::new(0);

fn count(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    HITS.fetch_add(1, SeqCst);
    PreVerdict::Execute
}

fn after(_: &Kprobe, _: &mut PtRegs, _flags: u64) {}

fn note_fault(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
    assert_eq!(vector, 13);
    FAULT_AT.store(regs.ip, SeqCst);
    FaultVerdict::Unhandled
}

/// After a write of the GS base no per-CPU data can be had. So nothing of a hit comes after it,
/// neither a step nor a post handler.
#[guest_test]
fn nothing_of_a_hit_comes_behind_a_write_of_the_gs_base() {
    let word = 0x5151_u64;
    let call = || assert_eq!(unusual_gs_base(black_box(&word)), 0x5151);
    call();
    let write = || {
        Kprobe::new()
            .symbol("unusual_gs_base")
            .offset(GS_WRITE)
            .pre(count)
    };
    for (method, optimize) in [(Translate, true), (Translate, false), (TrapFlag, true)] {
        HITS.store(0, SeqCst);
        let _jumps = Optimization::set(optimize);
        let probe = register(Box::new(write().step_method(method))).unwrap();
        call();
        let error = register(Box::new(write().post(after))).unwrap_err();
        assert_eq!((error.name(), error.errno()), ("msr-write", 95));
        call();
        assert_eq!(
            (HITS.load(SeqCst), probe.hits(), probe.nmissed()),
            (2, 2, 0),
            "{method:?}"
        );
        drop(probe);
    }
    let error = register(Box::new(write().post(after).step_method(TrapFlag))).unwrap_err();
    assert_eq!(error.name(), "msr-write");
    let error = register(Box::new(write().post(after).disabled())).unwrap_err();
    assert_eq!(error.name(), "msr-write");
    call();
}

/// A register that takes no such value: the fault is one of the original, and goes on at its
/// fix-up.
#[guest_test]
fn a_refused_msr_write_goes_on_at_its_fix_up() {
    assert_eq!(unusual_refused(), 1, "the processor refuses it");
    for method in [Translate, TrapFlag] {
        HITS.store(0, SeqCst);
        FAULT_AT.store(0, SeqCst);
        let probe = Kprobe::new()
            .symbol("unusual_refused")
            .offset(REFUSED_WRITE)
            .pre(count)
            .fault(note_fault);
        let probe = register(Box::new(probe.step_method(method))).unwrap();
        assert_eq!(unusual_refused(), 1);
        assert_eq!(HITS.load(SeqCst), 1, "{method:?}");
        assert_eq!(
            FAULT_AT.load(SeqCst),
            address("unusual_refused") + u64::from(REFUSED_WRITE)
        );
        drop(probe);
    }
}

/// A locked instruction stays one, also where its operand was made to fit elsewhere.
#[guest_test(timeout = 120)]
fn a_probed_locked_instruction_loses_no_update() {
    const TIMES: u64 = 20_000;
    for (method, optimize) in [(Translate, true), (Translate, false), (TrapFlag, false)] {
        let _jumps = Optimization::set(optimize);
        COUNTER.store(0, SeqCst);
        let probe = Kprobe::new()
            .symbol("unusual_locked")
            .offset(1)
            .step_method(method);
        let probe = register(Box::new(probe)).unwrap();
        let threads: Vec<_> = (0..smp::online_cpus())
            .map(|_| {
                spawn_kthread("locked", || unusual_locked(TIMES)).expect("memory for a thread")
            })
            .collect();
        for thread in threads {
            thread.wait_released();
        }
        let all = TIMES * smp::online_cpus() as u64;
        assert_eq!(
            (COUNTER.load(SeqCst), probe.hits()),
            (all, all),
            "{method:?}"
        );
        drop(probe);
    }
}

/// A probed instruction on per-CPU data is not moved to another CPU in its middle, however long it
/// takes: from its handler on to its end it works on the same CPU's.
#[guest_test(timeout = 120)]
fn a_probed_instruction_works_on_one_cpus_data() {
    // As much as there is after the last CPU in use, and no more than takes a fraction of a tick.
    let room = (percpu::MAX_CPUS - smp::online_cpus()) * size_of::<PerCpu>();
    let len = room.min(64_000);
    let probe = Kprobe::new()
        .symbol("unusual_per_cpu")
        .offset(COPY)
        .pre(tell_cpu);
    let probe = register(Box::new(probe)).unwrap();
    let body = move || {
        let mut copy = vec![0_u8; len];
        for _ in 0..400 {
            let cpu = unusual_per_cpu(copy.as_mut_ptr(), len as u64);
            let cpu = cpu.checked_sub(1).expect("the probe has hit") as usize;
            // The first word of a CPU's data, copied last, is their own address.
            let own = u64::from_le_bytes(*copy.first_chunk().unwrap());
            assert_eq!(own, core::ptr::from_ref(percpu::of(cpu)) as u64);
        }
    };
    let threads: Vec<_> = (0..3 * smp::online_cpus())
        .map(|_| spawn_kthread("per-cpu", body).expect("memory for a thread"))
        .collect();
    for thread in threads {
        thread.wait_released();
    }
    drop(probe);
}
