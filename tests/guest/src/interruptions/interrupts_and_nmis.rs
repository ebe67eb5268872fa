//! Interrupts and NMIs leave what they come upon as it was: registers, flags, CR2, and hits of
//! probes.
//!
//! A task fills its registers with known values and looks whether they stay, while interrupts or
//! NMIs come as fast as they are handled. A breakpoint in an NMI's handler unmasks the next NMI, so
//! storms of them are sent through a probed handler.

use crate::tools::preserved_registers::{pop_preserved, push_preserved};
use crate::{harness::waiting::soon, platform::suite::flags::DF, tools::nmi};
use alloc::{boxed::Box, format, sync::Arc, vec::Vec};
use core::{
    arch::naked_asm,
    hint,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{idt::vector, percpu, smp, traps},
    errno::Errno,
    mm::{paging, uaccess::copy_from_user_nofault},
    probes::{Kprobe, PreVerdict, PtRegs, register, survey},
    symbols,
    task::{
        TaskRef, exec::start_program, kthread::spawn_kthread_on, process::Which, sleep::sleep_ns,
        wait::wait_for_child,
    },
    time::{NSEC_PER_MSEC, ktime_get},
};
use x86_64::{
    instructions::interrupts,
    registers::{
        control::Cr2,
        rflags::{self, RFlags},
    },
};

fn spawn_on(cpu: usize, body: impl FnOnce() + Send + 'static) -> TaskRef {
    spawn_kthread_on(1 << cpu, "test", body).expect("memory for a thread")
}

/// Fills every general register but rdi and rsp, the status flags and DF with values of their own
/// and checks them until the byte at `stop` is set. Returns 0, or 1 if one of them has changed.
#[unsafe(naked)]
unsafe extern "C" fn hold_registers(stop: *const AtomicBool) -> u64 {
    naked_asm!(
        push_preserved!(),
        "mov rax, -101",
        "mov rbx, -102",
        "mov rcx, -103",
        "mov rdx, -104",
        "mov rsi, -105",
        "mov rbp, -107",
        "mov r8, -108",
        "mov r9, -109",
        "mov r10, -110",
        "mov r11, -111",
        "mov r12, -112",
        "mov r13, -113",
        "mov r14, -114",
        "mov r15, -115",
        "std",
        "2:",
        // Carry and sign set, zero and overflow clear: `stc` after a comparison whose outcome is
        // known.
        "cmp rax, 0",
        "stc",
        "nop",
        "nop",
        "nop",
        "nop",
        "nop",
        "nop",
        "nop",
        "nop",
        "jnc 4f",
        "jz 4f",
        "jns 4f",
        "jo 4f",
        "cmp rax, -101",
        "jne 4f",
        "cmp rbx, -102",
        "jne 4f",
        "cmp rcx, -103",
        "jne 4f",
        "cmp rdx, -104",
        "jne 4f",
        "cmp rsi, -105",
        "jne 4f",
        "cmp rbp, -107",
        "jne 4f",
        "cmp r8, -108",
        "jne 4f",
        "cmp r9, -109",
        "jne 4f",
        "cmp r10, -110",
        "jne 4f",
        "cmp r11, -111",
        "jne 4f",
        "cmp r12, -112",
        "jne 4f",
        "cmp r13, -113",
        "jne 4f",
        "cmp r14, -114",
        "jne 4f",
        "cmp r15, -115",
        "jne 4f",
        "pushfq",
        "test dword ptr [rsp], {df}",
        "lea rsp, [rsp + 8]",
        "jz 4f",
        "cmp byte ptr [rdi], 0",
        "je 2b",
        "xor eax, eax",
        "jmp 5f",
        "4: mov eax, 1",
        "5: cld",
        pop_preserved!(),
        "ret",
        df = const DF,
    )
}

static NMIS: AtomicU64 = AtomicU64::new(0);
/// How often code of the kernel ran with DF as an interrupted instruction had it.
static BACKWARDS: AtomicU64 = AtomicU64::new(0);

fn note_df(flags: u64) {
    let df = RFlags::from_bits_retain(flags).contains(RFlags::DIRECTION_FLAG);
    BACKWARDS.fetch_add(df.into(), SeqCst);
}

fn count_nmi(_: &PtRegs) {
    note_df(rflags::read_raw());
    NMIS.fetch_add(1, SeqCst);
}

/// The CPUs on which a tick has come, one bit each.
static TICKED: AtomicU64 = AtomicU64::new(0);

fn look_at_tick(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    note_df(regs.flags);
    TICKED.fetch_or(1 << percpu::cpu_id(), SeqCst);
    PreVerdict::Execute
}

/// Called for each NMI, and probed.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probed_in_nmi(regs: &PtRegs) -> u64 {
    NMIS.fetch_add(1, SeqCst) ^ regs.ip
}

/// Timer ticks, reschedule and synchronising IPIs and NMIs hit a loop that knows what each register
/// must hold. The kernel's own code runs with DF clear then.
#[guest_test]
fn interrupts_preserve_every_register_and_flag() {
    BACKWARDS.store(0, SeqCst);
    TICKED.store(0, SeqCst);
    // The flags with which the function is entered, as a breakpoint shows them: with a post handler
    // it is one.
    let tick = Kprobe::new()
        .symbol("timer_interrupt")
        .pre(look_at_tick)
        .post(|_, _, _| ());
    let tick = register(Box::new(tick)).expect("an ordinary function");
    let stop = Arc::new(AtomicBool::new(false));
    let changed = Arc::new(AtomicU64::new(0));
    traps::set_nmi_handler(Some(count_nmi));
    let cpus = smp::online_cpus();
    let holders: Vec<TaskRef> = (1..cpus)
        .map(|cpu| {
            let (stop, changed) = (stop.clone(), changed.clone());
            spawn_on(cpu, move || {
                // SAFETY: a function that keeps to its calling convention.
                changed.fetch_add(unsafe { hold_registers(&raw const *stop) }, SeqCst);
            })
        })
        .collect();
    // From a CPU that holds no registers.
    let sender = spawn_on(0, move || {
        for round in 0..3_000 {
            for cpu in 1..cpus {
                smp::send_ipi(cpu, [vector::RESCHEDULE, vector::PROBES_SYNC][round % 2]);
                smp::send_nmi(cpu);
            }
        }
    });
    sender.wait_released();
    // The CPUs that hold registers have ticks, too.
    for cpu in 1..cpus {
        while TICKED.load(SeqCst) & 1 << cpu == 0 {
            sleep_ns(NSEC_PER_MSEC);
        }
    }
    stop.store(true, SeqCst);
    holders.iter().for_each(|holder| holder.wait_released());
    traps::set_nmi_handler(None);
    assert_eq!(changed.load(SeqCst), 0, "registers changed");
    assert_eq!(BACKWARDS.load(SeqCst), 0, "times was DF set in the kernel");
    assert!(NMIS.load(SeqCst) > 0, "no NMI came");
    assert!(tick.hits() > 0, "no tick came");
    drop(tick);
}

/// A page fault in the handler of an NMI leaves the address of the one that the NMI has come upon.
#[guest_test]
fn an_nmi_keeps_the_address_of_a_page_fault() {
    const FIRST: u64 = 0x5000_0000;
    const IN_NMI: u64 = 0x5100_0000;
    static READS: AtomicU64 = AtomicU64::new(0);
    fn faults(address: u64) -> bool {
        copy_from_user_nofault(&mut [0; 8], address) == Err(Errno::EFAULT)
    }
    fn nmi(_: &PtRegs) {
        READS.fetch_add(u64::from(faults(IN_NMI)), SeqCst);
        NMIS.fetch_add(1, SeqCst);
    }
    READS.store(0, SeqCst);
    NMIS.store(0, SeqCst);
    traps::set_nmi_handler(Some(nmi));
    let address = interrupts::without_interrupts(|| {
        assert!(faults(FIRST));
        assert_eq!(Cr2::read_raw(), FIRST);
        smp::send_nmi(percpu::cpu_id());
        while NMIS.load(SeqCst) == 0 {
            hint::spin_loop();
        }
        Cr2::read_raw()
    });
    traps::set_nmi_handler(None);
    assert_eq!(READS.load(SeqCst), 1);
    assert_eq!(address, FIRST);
}

/// One NMI after the other to a CPU with interrupts off.
#[guest_test]
fn nmi_arrives_with_interrupts_off() {
    static READY: AtomicBool = AtomicBool::new(false);
    static HERE: AtomicU64 = AtomicU64::new(0);
    fn count(_: &PtRegs) {
        HERE.fetch_add(1, SeqCst);
    }
    traps::set_nmi_handler(Some(count));
    let thread = spawn_on(1, || {
        percpu::preempt_disable();
        x86_64::instructions::interrupts::without_interrupts(|| {
            READY.store(true, SeqCst);
            while HERE.load(SeqCst) < 100 {
                hint::spin_loop();
            }
        });
        percpu::preempt_enable();
    });
    while !READY.load(SeqCst) {
        hint::spin_loop();
    }
    for sent in 0..100 {
        smp::send_nmi(1);
        while HERE.load(SeqCst) <= sent {
            hint::spin_loop();
        }
    }
    thread.wait_released();
    traps::set_nmi_handler(None);
}

/// The `iretq` of a probe hit unmasks NMIs while the handler of one still runs: the next comes on
/// top of it, and in a storm one on top of the other.
#[guest_test]
fn storm_of_nmis_passes_over_a_probe_in_their_handler() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static CHANGED: AtomicU64 = AtomicU64::new(0);
    static HITS: AtomicU64 = AtomicU64::new(0);
    fn hit(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        HITS.fetch_add(1, SeqCst);
        PreVerdict::Execute
    }
    fn nmi(regs: &PtRegs) {
        hint::black_box(probed_in_nmi(regs));
    }
    let probe = Kprobe::new().symbol("probed_in_nmi").pre(hit);
    let probe = register(Box::new(probe)).expect("an ordinary function");
    NMIS.store(0, SeqCst);
    traps::set_nmi_handler(Some(nmi));
    let holder = spawn_on(1, || {
        // SAFETY: a function that keeps to its calling convention.
        CHANGED.store(unsafe { hold_registers(&raw const STOP) }, SeqCst);
    });
    let sender = spawn_on(0, || {
        let deadline = soon();
        while NMIS.load(SeqCst) < 5_000 && ktime_get() < deadline {
            smp::send_nmi(1);
        }
    });
    sender.wait_released();
    STOP.store(true, SeqCst);
    holder.wait_released();
    traps::set_nmi_handler(None);
    assert_eq!(CHANGED.load(SeqCst), 0, "registers changed");
    assert!(NMIS.load(SeqCst) > 0, "no NMI came");
    assert_eq!(
        HITS.load(SeqCst) + probe.nmissed(),
        NMIS.load(SeqCst),
        "each NMI hit or was counted as missed"
    );
}

/// A hit in the handler of an NMI lets in the next one, on top of it: that one is counted
/// there, changes nothing, and has the handler run again.
#[guest_test]
fn an_nmi_on_top_of_another_is_noted_and_handled_after_it() {
    static ON_TOP: AtomicU64 = AtomicU64::new(0);
    static CHANGED: AtomicU64 = AtomicU64::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    fn nmi(regs: &PtRegs) {
        let is_second = NMIS.load(SeqCst) % 2 == 1;
        hint::black_box(probed_in_nmi(regs));
        if is_second {
            return;
        }
        // The hit's `iretq` has unmasked them.
        let cpu = percpu::this();
        assert_eq!(cpu.nmis_seen(), 1);
        let end = soon();
        smp::send_nmi(cpu.cpu_id());
        while cpu.nmis_seen() == 1 && ktime_get() < end {
            hint::spin_loop();
        }
        ON_TOP.fetch_add(u64::from(cpu.nmis_seen() == 2), SeqCst);
    }
    for counter in [&ON_TOP, &CHANGED, &NMIS] {
        counter.store(0, SeqCst);
    }
    STOP.store(false, SeqCst);
    let probe = Kprobe::new()
        .symbol("probed_in_nmi")
        .pre(|_, _| PreVerdict::Execute)
        .post(|_, _, _| ());
    let probe = register(Box::new(probe)).expect("an ordinary function");
    traps::set_nmi_handler(Some(nmi));
    let holder = spawn_on(1, || {
        // SAFETY: a function that keeps to its calling convention.
        CHANGED.store(unsafe { hold_registers(&raw const STOP) }, SeqCst);
    });
    let sender = spawn_on(0, || {
        for round in 1..=500 {
            smp::send_nmi(1);
            while NMIS.load(SeqCst) < 2 * round || percpu::of(1).nmis_seen() != 0 {
                hint::spin_loop();
            }
        }
    });
    sender.wait_released();
    STOP.store(true, SeqCst);
    holder.wait_released();
    traps::set_nmi_handler(None);
    assert_eq!((ON_TOP.load(SeqCst), NMIS.load(SeqCst)), (500, 1_000));
    assert_eq!(CHANGED.load(SeqCst), 0, "registers changed");
    assert_eq!((probe.hits(), probe.nmissed()), (1_000, 0));
    drop(probe);
}

/// The same with probes on all instructions of what leads to the handler, as far as they can be
/// probed.
#[guest_test]
fn storm_of_nmis_passes_over_probes_on_their_way() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static CHANGED: AtomicU64 = AtomicU64::new(0);
    fn nmi(_: &PtRegs) {
        NMIS.fetch_add(1, SeqCst);
    }
    let mut probes = Vec::new();
    for symbol in
        symbols::functions().filter(|symbol| format!("{symbol}").contains("traps::do_nmi"))
    {
        for judged in survey::function(&symbol).expect("text that stays") {
            if judged.verdict.is_ok() {
                let probe = Kprobe::new()
                    .at(judged.insn.ip())
                    .pre(|_, _| PreVerdict::Execute);
                probes.push(register(Box::new(probe)).expect("judged so"));
            }
        }
    }
    assert!(probes.len() > 5, "{}", probes.len());
    NMIS.store(0, SeqCst);
    STOP.store(false, SeqCst);
    traps::set_nmi_handler(Some(nmi));
    let holder = spawn_on(1, || {
        // SAFETY: a function that keeps to its calling convention.
        CHANGED.store(unsafe { hold_registers(&raw const STOP) }, SeqCst);
    });
    let sender = spawn_on(0, || (0..100_000).for_each(|_| smp::send_nmi(1)));
    sender.wait_released();
    STOP.store(true, SeqCst);
    holder.wait_released();
    traps::set_nmi_handler(None);
    assert_eq!(CHANGED.load(SeqCst), 0, "registers changed");
    let seen = NMIS.load(SeqCst);
    assert!(
        seen > 0 && probes[0].hits() + probes[0].nmissed() >= seen,
        "{seen} NMIs"
    );
}

/// Two programs make system calls, which yield too, while NMIs come at any instruction: also at
/// those of the entry that still have the program's stack pointer or its GS.
#[guest_test]
fn registers_survive_system_calls_under_nmis() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static ON_USER_STACK: AtomicU64 = AtomicU64::new(0);
    fn on_nmi(regs: &PtRegs) {
        let on_user_stack = !regs.user_mode() && regs.sp < paging::USER_END;
        ON_USER_STACK.fetch_add(u64::from(on_user_stack), SeqCst);
        NMIS.fetch_add(1, SeqCst);
    }
    STOP.store(false, SeqCst);
    traps::set_nmi_handler(Some(on_nmi));
    let sender = spawn_on(0, || {
        while !STOP.load(SeqCst) {
            nmi::send(1, &NMIS, || false);
        }
    });
    let programs = [(); 2]
        .map(|()| start_program("/bin/exercise", &["registers", "200000"]).expect("a program"));
    for pid in programs {
        let (_, status) = wait_for_child(Which::Pid(pid), false)
            .expect("a child")
            .expect("waited");
        assert_eq!(status.code(), Some(0), "{status:?}");
    }
    STOP.store(true, SeqCst);
    sender.wait_released();
    traps::set_nmi_handler(None);
    kernel::pr_info!(
        "{} NMIs came on the user's stack pointer",
        ON_USER_STACK.load(SeqCst)
    );
}
