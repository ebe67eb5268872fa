//! One probe on each form of instruction: what it does is the same with and without.
//!
//! Each form is a little function whose instruction under test carries a label. It runs from a
//! given machine state, and the state that it leaves behind (registers, flags, memory) is compared:
//! unprobed, under a kprobe with a pre handler, with a post handler too, and under both at once.

use crate::platform::suite::flags::{PLAIN, STATUS};
use crate::tools::preserved_registers::{pop_preserved, push_preserved};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{
    arch::{global_asm, naked_asm},
    ffi::{CStr, c_char},
    slice,
    sync::atomic::{AtomicU64, Ordering},
};
use kernel::{
    probes::{Kprobe, PreVerdict, PtRegs, register},
    sync::SpinLock,
};

/// Quad words of memory that forms may use, by rsi, rdi and rbx.
const SCRATCH_WORDS: usize = 64;

/// The state before a form and after it.
#[repr(C, align(64))]
#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    /// rax rcx rdx rbx rbp rsi rdi r8 to r15.
    registers: [u64; 15],
    flags: u64,
    /// How far rsp moved over the form; 0 for all of them.
    stack_moved: u64,
    /// Keeps `scratch` 16-aligned.
    padding: u64,
    scratch: [u64; SCRATCH_WORDS],
}

/// Names of [`State::registers`], for messages.
const REGISTERS: [&str; 15] = [
    "rax", "rcx", "rdx", "rbx", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

impl State {
    /// A state in which every register is different, and addresses point into the scratch memory at
    /// `scratch`.
    fn new(flags: u64, seed: u64, scratch: u64) -> Self {
        let mut state = Self {
            registers: core::array::from_fn(|n| 0x0101_0101_0101_0100 * (n as u64 + 1) + seed),
            flags,
            stack_moved: 0,
            padding: 0,
            scratch: core::array::from_fn(|n| 0x1111_2222_3333_0000 + n as u64 * seed),
        };
        let [_, rcx, _, rbx, _, rsi, rdi, ..] = &mut state.registers;
        *rcx = 3;
        *rbx = scratch + 256;
        *rsi = scratch;
        *rdi = scratch + 128;
        state
    }

    /// The differences of `other`.
    fn difference(&self, other: &Self) -> String {
        let mut text = String::new();
        for (name, (a, b)) in REGISTERS
            .iter()
            .zip(self.registers.iter().zip(&other.registers))
        {
            if a != b {
                text += &format!(" {name} {a:#x} / {b:#x}");
            }
        }
        if self.flags != other.flags {
            text += &format!(" flags {:#x} / {:#x}", self.flags, other.flags);
        }
        if self.stack_moved != other.stack_moved {
            text += &format!(" rsp {:#x} / {:#x}", self.stack_moved, other.stack_moved);
        }
        for (n, (a, b)) in self.scratch.iter().zip(&other.scratch).enumerate() {
            if a != b {
                text += &format!(" word {n} {a:#x} / {b:#x}");
            }
        }
        text
    }
}

/// Runs `code` from `state` and stores what it leaves there.
///
/// ```text
///   rsp at the call   return address
///   -0x08 .. -0x30    the caller's rbx, rbp, r12 to r15
///   -0x38             state
///   -0x40             rsp at the call of the form, to see whether it comes back the same
/// ```
///
/// # Safety
/// `code` changes nothing but what `State` holds, and returns.
#[unsafe(naked)]
unsafe extern "C" fn run_form(state: *mut State, code: u64) {
    naked_asm!(
        push_preserved!(),
        "push rdi",
        "push rsp",
        "push rsi",
        "push qword ptr [rdi + 120]",
        "mov rax, [rdi + 0]; mov rcx, [rdi + 8]; mov rdx, [rdi + 16]; mov rbx, [rdi + 24]",
        "mov rbp, [rdi + 32]",
        "mov rsi, [rdi + 40]; mov r8, [rdi + 56]; mov r9, [rdi + 64]; mov r10, [rdi + 72]",
        "mov r11, [rdi + 80]",
        "mov r12, [rdi + 88]; mov r13, [rdi + 96]; mov r14, [rdi + 104]; mov r15, [rdi + 112]",
        "mov rdi, [rdi + 48]",
        "popfq",
        "call [rsp]",
        // Only pushes and moves until the flags are safe.
        "pushfq",
        "cld",
        "push rdi",
        "mov rdi, [rsp + 32]",
        "mov [rdi + 0], rax; mov [rdi + 8], rcx; mov [rdi + 16], rdx; mov [rdi + 24], rbx",
        "mov [rdi + 32], rbp",
        "mov [rdi + 40], rsi; mov [rdi + 56], r8; mov [rdi + 64], r9; mov [rdi + 72], r10",
        "mov [rdi + 80], r11",
        "mov [rdi + 88], r12; mov [rdi + 96], r13; mov [rdi + 104], r14; mov [rdi + 112], r15",
        "pop rax; mov [rdi + 48], rax",
        "pop rax; mov [rdi + 120], rax",
        "pop rsi",
        "pop rax",
        "sub rax, rsp; mov [rdi + 128], rax",
        "pop rdi",
        pop_preserved!(),
        "sti",
        "ret",
    )
}

/// One form, as the table of the assembly has it.
#[repr(C)]
struct Form {
    start: u64,
    at: u64,
    name: *const c_char,
}

/// Defines forms: a name, and the code before, of and after the instruction under test. `2` is its
/// label, `3` the one after it.
macro_rules! forms {
    ($($name:literal: $before:literal, $insn:literal, $after:literal;)+) => {
        global_asm!(
            ".pushsection .rodata.instruction_forms, \"a\"",
            ".balign 8",
            ".globl instruction_forms_start",
            "instruction_forms_start:",
            ".popsection",
            $(
                concat!(
                    ".pushsection .text.instruction_forms, \"ax\"\n",
                    ".balign 16\n",
                    ".type form_", $name, ", @function\n",
                    "form_", $name, ":\n",
                    $before, "\n",
                    "2: ", $insn, "\n",
                    "3: ", $after, "\n",
                    "ret\n",
                    ".size form_", $name, ", . - form_", $name, "\n",
                    "9: .asciz \"", $name, "\"\n",
                    ".popsection\n",
                    ".pushsection .rodata.instruction_forms, \"a\"\n",
                    ".quad form_", $name, ", 2b, 9b\n",
                    ".popsection\n",
                ),
            )+
            ".pushsection .rodata.instruction_forms, \"a\"",
            ".globl instruction_forms_end",
            "instruction_forms_end:",
            ".popsection",
        );
    };
}

unsafe extern "C" {
    static instruction_forms_start: Form;
    static instruction_forms_end: Form;
}

forms! {
    // Moves
    "mov_reg": "", "mov rax, rbx", "";
    "mov_reg32": "", "mov eax, ebx", "";
    "mov_imm64": "", "movabs rax, 0x1122334455667788", "";
    "mov_imm32_sign": "", "mov rax, -5", "";
    "mov_load": "", "mov rax, [rsi + 8]", "";
    "mov_load_scaled": "", "mov rax, [rsi + rcx * 8 + 16]", "";
    "mov_store": "", "mov [rdi], rdx", "";
    "mov_store_imm": "", "mov dword ptr [rdi + 4], 0x12345678", "";
    "mov_byte": "", "mov byte ptr [rdi + 3], dl", "";
    "movzx": "", "movzx eax, byte ptr [rsi + 1]", "";
    "movsxd": "", "movsxd rax, dword ptr [rsi + 4]", "";
    "lea": "", "lea rax, [rsi + rcx * 4 - 7]", "";
    "xchg_reg": "", "xchg rax, rdx", "";
    "xchg_mem": "", "xchg [rdi], rax", "";
    "cmov_taken": "xor eax, eax", "cmovz rax, rdx", "";
    "cmov_not": "xor eax, eax", "cmovnz rax, rdx", "";
    "bswap": "", "bswap rdx", "";
    // RIP-relative
    "rip_load": "", "mov rax, [rip + 8f]", "jmp 7f\n8: .quad 0x0123456789abcdef\n7:";
    "rip_lea": "", "lea rax, [rip + 3f]", "";
    "rip_cmp_imm": "", "cmp dword ptr [rip + 8f], 0x11223344", "jmp 7f\n8: .long 0x11223344, 0\n7:";
    "rip_push": "", "push qword ptr [rip + 8f]", "pop rax\njmp 7f\n8: .quad 0x5566778899aabbcc\n7:";
    "rip_imul_imm8": "", "imul eax, dword ptr [rip + 8f], 7", "jmp 7f\n8: .long 1234, 0\n7:";
    // Arithmetic and flags
    "add": "", "add rax, rdx", "";
    "adc": "stc", "adc rax, rdx", "";
    "sbb": "stc", "sbb rax, [rsi]", "";
    "sub_imm": "", "sub rax, 0x7f", "";
    "cmp": "", "cmp rax, rdx", "";
    "test": "", "test al, al", "";
    "inc_mem": "", "inc qword ptr [rdi]", "";
    "neg": "", "neg rdx", "";
    "mul": "", "mul rdx", "";
    "imul3": "", "imul rax, rdx, 100", "";
    "div": "xor edx, edx", "div rcx", "";
    "shl_cl": "", "shl rax, cl", "";
    "shld_imm": "", "shld rax, rdx, 9", "";
    "rcr": "stc", "rcr rax, 1", "";
    "bt": "", "bt rdx, 5", "";
    "bts_mem": "", "bts qword ptr [rdi], 70", "";
    "bsf": "", "bsf rax, rdx", "";
    "setcc": "cmp rax, rax", "setz dl", "";
    "stc": "", "stc", "";
    "cmc": "", "cmc", "";
    "lahf": "", "lahf", "";
    "sahf": "mov ah, 0xd5", "sahf", "";
    "std": "", "std", "cld";
    "cld": "std", "cld", "";
    "lock_xadd": "", "lock xadd [rdi], rax", "";
    "lock_cmpxchg": "mov rax, [rdi]", "lock cmpxchg [rdi], rdx", "";
    "cmpxchg16b": "mov rax, [rdi]\nmov rdx, [rdi + 8]\nmov rbx, 1", "lock cmpxchg16b [rdi]", "";
    // Strings
    "rep_movsb": "", "rep movsb", "";
    "rep_movsq_none": "xor ecx, ecx", "rep movsq", "";
    "rep_stosq": "mov ecx, 5", "rep stosq", "";
    "repe_cmpsb": "mov ecx, 40", "repe cmpsb", "";
    "repne_scasb": "mov ecx, 40\nmov al, 0x22", "repne scasb", "";
    "rep_movsq_down": "add rsi, 64\nadd rdi, 64\nstd", "rep movsq", "cld";
    "lodsq": "", "lodsq", "";
    // The stack
    "push_reg": "", "push rdx", "pop rax";
    "pop_reg": "push rdx", "pop rax", "";
    "push_rsp": "", "push rsp", "pop rax\nsub rax, rsp";
    "pop_rsp": "mov rax, rsp\npush rax", "pop rsp", "";
    "push_imm": "", "push -3", "pop rax";
    "push_mem": "", "push qword ptr [rsi]", "pop rax";
    "push_stack_mem": "push 11\npush 22", "push qword ptr [rsp + 8]", "pop rax\npop rdx\npop rdx";
    "pop_mem": "push 33", "pop qword ptr [rdi]", "";
    "pop_stack_mem": "push 1\npush 2\npush 3", "pop qword ptr [rsp + 8]", "pop rax\npop rdx";
    "enter": "", "enter 32, 0", "leave";
    "leave": "push rbp\nmov rbp, rsp\npush 5", "leave", "";
    "sub_rsp": "", "sub rsp, 64", "add rsp, 64";
    "mov_rsp": "mov rbp, rsp\npush 1", "mov rsp, rbp", "";
    "pushfq": "stc", "pushfq", "pop rax";
    "popfq": "push 0x8d7", "popfq", "pushfq\npop rax\npush 2\npopfq\nsti";
    // Branches
    "jmp_short": "", ".byte 0xeb, 0x02", "ud2\nmov eax, 1";
    "jmp_near": "", ".byte 0xe9, 2, 0, 0, 0", "ud2\nmov eax, 2";
    "jmp_back": "jmp 5f\n4: mov eax, 4\njmp 6f\n5:", "jmp 4b", "6:";
    "jz_taken": "cmp eax, eax", "jz 4f", "mov edx, 1\n4:";
    "jz_not": "test rcx, rcx", "jz 4f", "mov edx, 1\n4:";
    "jg_near_taken": "cmp rcx, 1", ".byte 0x0f, 0x8f, 5, 0, 0, 0", "mov edx, 1\nmov ebp, 2";
    "loop_taken": "", "loop 4f", "mov edx, 1\n4:";
    "loop_last": "mov ecx, 1", "loop 4f", "mov edx, 1\n4:";
    "loop_zero": "xor ecx, ecx", "loop 4f", "mov edx, 1\n4:";
    "loopne": "cmp eax, eax", "loopne 4f", "mov edx, 1\n4:";
    "loop_ecx": "movabs rcx, 0x100000002", ".byte 0x67, 0xe2, 0x05", "mov edx, 1\n4:";
    "jrcxz_taken": "xor ecx, ecx", "jrcxz 4f", "mov edx, 1\n4:";
    "jecxz_taken": "movabs rcx, 0x100000000", "jecxz 4f", "mov edx, 1\n4:";
    "jmp_reg": "lea rax, [rip + 4f]", "jmp rax", "ud2\n4:";
    "jmp_mem": "lea rax, [rip + 4f]\nmov [rdi], rax", "jmp [rdi]", "ud2\n4:";
    "jmp_rip_mem": "", "jmp [rip + 8f]", "ud2\n4: jmp 7f\n8: .quad 4b\n7:";
    "call_rel": "", "call 4f", "jmp 5f\n4: mov eax, 6\nret\n5:";
    "call_next": "", "call 3f", "pop rax";
    "call_67": "", ".byte 0x67, 0xe8, 2, 0, 0, 0", "jmp 5f\npop rax\npush rax\nret\n5:";
    "call_reg": "lea rax, [rip + 4f]", "call rax", "jmp 5f\n4: mov rdx, [rsp]\nret\n5:";
    "call_r12": "lea r12, [rip + 4f]", "call r12", "jmp 5f\n4: mov rdx, [rsp]\nret\n5:";
    "call_mem": "lea rax, [rip + 4f]\nmov [rdi], rax", "call [rdi]",
        "jmp 5f\n4: mov rdx, [rsp]\nret\n5:";
    "call_stack_mem": "lea rax, [rip + 4f]\npush rax", "call [rsp]",
        "pop rax\njmp 5f\n4: mov rdx, [rsp]\nret\n5:";
    "ret": "lea rax, [rip + 4f]\npush rax", "ret", "ud2\n4:";
    "ret_imm": "push 9\nlea rax, [rip + 4f]\npush rax", "ret 8", "ud2\n4:";
    "rep_ret": "lea rax, [rip + 4f]\npush rax", ".byte 0xf3, 0xc3", "ud2\n4:";
    // System
    "cli": "", "cli", "pushfq\npop rax\nsti";
    "sti": "cli", "sti", "nop\npushfq\npop rax";
    "in_the_shadow_of_sti": "cli\nsti", "nop", "pushfq\npop rax";
    "in_the_shadow_of_ss": "mov eax, ss\nmov ss, eax", "add rax, rdx", "";
    "cpuid": "mov eax, 0\nmov ecx, 0", "cpuid", "";
    "mov_cr0": "", "mov rax, cr0", "";
    "mov_ds": "mov eax, ds", "mov ds, eax", "";
    "smsw": "", "smsw rax", "";
    "rdmsr": "mov ecx, 0xc0000080", "rdmsr", "";
    "wrmsr": "mov ecx, 0xc0000080\nrdmsr", "wrmsr", "";
    "rdtsc": "", "rdtsc", "xor eax, eax\nxor edx, edx";
    "invlpg": "", "invlpg [rsi]", "";
    "out_al": "mov edx, 0x80\nmov al, 0", "out dx, al", "";
    "stac": "", "stac", "pushfq\npop rax\nclac";
    "clac": "stac", "clac", "pushfq\npop rax";
    "in_al": "mov edx, 0x64", "in al, dx", "mov al, 0";
    "gs_load": "", "mov rax, gs:[0]", "xor eax, eax";
    "pause": "", "pause", "";
    "mfence": "", "mfence", "";
    // No-operations of every length, and landing pads
    "nop1": "", "nop", "";
    "nop3": "", ".byte 0x0f, 0x1f, 0x00", "";
    "nop5": "", ".byte 0x0f, 0x1f, 0x44, 0, 0", "";
    "nop9": "", ".byte 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0", "";
    "nop14": "", ".byte 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0", "";
    "nop15": "",
        ".byte 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0", "";
    "endbr64": "nop", "endbr64", "";
    // Long ones, across a page, and what depends on its neighbours
    "lock_or_14": "push 1",
        ".byte 0x3e, 0xf0, 0x48, 0x81, 0x8c, 0x24, 0, 0, 0, 0, 0x10, 0x20, 0x30, 0x40", "pop rax";
    "across_pages": "jmp 2f\n.balign 4096\n.skip 4094", "mov rax, 0x11223344", "";
    "after_mov_ss": "mov eax, ss\nmov ss, eax", "inc rdx", "";
    "after_sti": "cli\nsti", "inc rdx", "";
    "pushfw": "stc", ".byte 0x66, 0x9c", ".byte 0x66, 0x58";
    "popfw": ".byte 0x66, 0x68, 0xd7, 0x0a", ".byte 0x66, 0x9d", "";
    "lfence": "", "lfence", "";
    "sfence": "", "sfence", "";
    "clflush": "", "clflush [rsi]", "";
    "prefetch": "", "prefetcht0 [rsi]", "";
    "prefetch_nowhere": "xor eax, eax", "prefetcht0 [rax]", "";
    // Prefixes that a processor may heed or not
    "f2_loope": "cmp eax, eax", ".byte 0xf2, 0xe1, 0x05", "mov edx, 1\n4:";
    "f2_loope_not_equal": "test rcx, rcx", ".byte 0xf2, 0xe1, 0x05", "mov edx, 1\n4:";
    "f3_loopne": "test rcx, rcx", ".byte 0xf3, 0xe0, 0x05", "mov edx, 1\n4:";
    "f3_loopne_equal": "cmp eax, eax", ".byte 0xf3, 0xe0, 0x05", "mov edx, 1\n4:";
    "ds_jz": "cmp eax, eax", ".byte 0x3e, 0x74, 0x05", "mov edx, 1\n4:";
    "bnd_jmp": "", ".byte 0xf2, 0xeb, 0x02", "ud2\nmov eax, 1";
    "cs_call": "", ".byte 0x2e, 0xe8, 2, 0, 0, 0", "jmp 5f\nmov rdx, [rsp]\nret\n5:";
    "data16_rex_call": "",
        ".byte 0x66, 0x66, 0x48, 0xe8, 2, 0, 0, 0", "jmp 5f\nmov rdx, [rsp]\nret\n5:";
    "notrack_jmp_reg": "lea rax, [rip + 4f]", ".byte 0x3e, 0xff, 0xe0", "ud2\n4:";
    "push_reg_67": "", ".byte 0x67, 0x52", "pop rax";
    "push_reg_cs": "", ".byte 0x2e, 0x52", "pop rax";
    "call_rex": "", ".byte 0x48, 0xe8, 2, 0, 0, 0", "jmp 5f\nmov rdx, [rsp]\nret\n5:";
}

fn table() -> &'static [Form] {
    let start = &raw const instruction_forms_start;
    let end = &raw const instruction_forms_end;
    // SAFETY: the assembly above lays the forms out between the two labels.
    unsafe { slice::from_raw_parts(start, (end as usize - start as usize) / size_of::<Form>()) }
}

static PRE_RUNS: AtomicU64 = AtomicU64::new(0);
static POST_RUNS: AtomicU64 = AtomicU64::new(0);

fn count_pre(probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    assert_eq!(regs.ip, probe.addr() + 1);
    PRE_RUNS.fetch_add(1, Ordering::Relaxed);
    PreVerdict::Execute
}

fn count_post(_probe: &Kprobe, _regs: &mut PtRegs, _flags: u64) {
    POST_RUNS.fetch_add(1, Ordering::Relaxed);
}

/// Where forms run: the same memory for every run, as addresses show in registers and flags.
static ARENA: SpinLock<State> = SpinLock::new(State {
    registers: [0; 15],
    flags: 0,
    stack_moved: 0,
    padding: 0,
    scratch: [0; SCRATCH_WORDS],
});

/// The state that `form` leaves when it starts from `flags`, with addresses of the stack made
/// relative.
#[inline(never)]
fn outcome(form: &Form, flags: u64, seed: u64) -> State {
    // A raw borrow would hold the lock to the end of the function.
    let arena = core::ptr::from_mut(&mut *ARENA.lock());
    // SAFETY: tests run one at a time, and no other use of the arena begins before this one ends;
    // the forms above keep to the rules of `run_form`. Interrupts are on, as some forms need them.
    let mut state = unsafe {
        *arena = State::new(flags, seed, (&raw const (*arena).scratch) as u64);
        run_form(arena, form.start);
        (*arena).clone()
    };
    let stack = &raw const state as u64;
    for value in state.registers.iter_mut().chain(&mut state.scratch) {
        if value.abs_diff(stack) < 0x4000 {
            *value = value.wrapping_sub(stack);
        }
    }
    state
}

/// Compares every form unprobed with the same form under the given kind of probe.
fn compare(kind: &str, probe_of: impl Fn(u64) -> Vec<Kprobe>, runs: impl Fn() -> u64) {
    let mut failures = Vec::new();
    for form in table() {
        // SAFETY: a string of the assembly above.
        let name = unsafe { CStr::from_ptr(form.name) }.to_str().unwrap_or("?");
        for (flags, seed) in [(PLAIN, 1), (PLAIN | STATUS, 0xfedc_ba98)] {
            let plain = outcome(form, flags, seed);
            let before = runs();
            let probes: Result<Vec<_>, _> = probe_of(form.at)
                .into_iter()
                .map(|probe| register(Box::new(probe)))
                .collect();
            let probes = match probes {
                Ok(probes) => probes,
                // Which no post handler can follow.
                Err(error) if name == "wrmsr" && error.name() == "msr-write" => break,
                Err(error) => {
                    failures.push(format!("{name}: refused: {error}"));
                    break;
                }
            };
            let probed = outcome(form, flags, seed);
            drop(probes);
            let difference = plain.difference(&probed);
            if !difference.is_empty() {
                failures.push(format!("{name} from flags {flags:#x}:{difference}"));
            }
            if runs() - before != 1 {
                failures.push(format!("{name}: the handler ran {} times", runs() - before));
            }
            let again = outcome(form, flags, seed);
            if plain != again {
                failures.push(format!(
                    "{name} after the probe:{}",
                    plain.difference(&again)
                ));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "under {kind}:\n{}",
        failures.join("\n")
    );
}

fn compare_all() {
    assert!(table().len() >= 60, "{} forms", table().len());
    let pre = || PRE_RUNS.load(Ordering::Relaxed);
    let post = || POST_RUNS.load(Ordering::Relaxed);
    compare(
        "a pre handler",
        |at| [Kprobe::new().at(at).pre(count_pre)].into(),
        pre,
    );
    compare(
        "a post handler",
        |at| [Kprobe::new().at(at).post(count_post)].into(),
        post,
    );
    compare(
        "three probes",
        |at| {
            [
                Kprobe::new().at(at).post(count_post),
                Kprobe::new().at(at).pre(count_pre),
                Kprobe::new().at(at),
            ]
            .into()
        },
        pre,
    );
}

/// A probed instruction has exactly the effect of an unprobed one.
#[guest_test(timeout = 120)]
fn every_instruction_form_does_the_same_probed_and_unprobed() {
    compare_all();
}

/// The same under single-stepping.
#[guest_test(cmdline = "kprobes.step=tf", timeout = 120)]
fn every_instruction_form_does_the_same_single_stepped() {
    compare_all();
}
