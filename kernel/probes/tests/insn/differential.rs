//! Executes one instruction in its place, through its replacements and by single steps, and
//! compares.
//!
//! The processor is the judge: what the replacement does must be what the instruction does where it
//! stands. Registers, flags, memory, where it goes on and how it faults are compared, but not the
//! stack below RSP, which a replacement may use. [`compare`] tells the first difference, [`check`]
//! panics.

use iced_x86::{Decoder, DecoderOptions, Register};
use probes::{
    PtRegs,
    insn::{
        Ending, FlagsOp, Insn, OperandSize, Refusal, ResumeIp, SavedFlagsOperand, StepProgress,
        Translation, flags, step_copy, translate,
    },
};

use crate::{
    machine::{Cpu, Machine, RSP, Stop},
    symbolic,
};

/// Where the test keeps the saved flags for `pushf`, relative to the GS base, which is the start of
/// the data.
pub const SAVED_FLAGS_OFFSET: u32 = 0x18;

/// Flags that user code controls and a run must reproduce.
const COMPARED_FLAGS: u64 =
    flags::bits::ARITHMETIC | flags::bits::DF | flags::bits::AC | flags::bits::TF;

/// Stack below RSP on arrival that a replacement may overwrite.
const SCRATCH_BYTES: u64 = 32;

/// The state that the probed code sees after the instruction.
#[derive(Clone)]
struct Outcome {
    cpu: Cpu,
    /// `None`: execution goes on at `cpu.ip`. Else (vector, error code, faulting address).
    fault: Option<(u64, u64, u64)>,
    memory: Vec<u8>,
}

/// A way to execute an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Resume,
    Post,
    Step,
}

/// Runs `insn` natively and by each of `methods`, from `cpu`. Returns whether it completed without
/// a fault; `Err` describes the first difference.
pub fn compare(
    machine: &mut Machine,
    insn: &Insn,
    cpu: &Cpu,
    methods: &[Method],
) -> Result<bool, String> {
    let mut native_cpu = Cpu {
        ip: insn.ip(),
        ..cpu.clone()
    };
    let saved_flags = machine.data() + u64::from(SAVED_FLAGS_OFFSET);
    machine.set(saved_flags, flags::pushed_image(cpu.flags));
    machine.prepare(insn.ip(), insn.bytes());
    let stop = machine.resume(&mut native_cpu);
    let native =
        outcome(machine, native_cpu, stop).map_err(|e| format!("{insn:?} in place: {e}"))?;
    for &method in methods {
        // The exit pushes an address: leave out instructions that leave no stack to push it on.
        let stack = machine.data() + SCRATCH_BYTES..=machine.stack_end();
        if method == Method::Post && !stack.contains(&native.cpu.gpr[RSP]) {
            continue;
        }
        let result = match method {
            Method::Resume => replacement(machine, insn, cpu, Ending::Resume),
            Method::Post => {
                let saved_flags = Some(SavedFlagsOperand {
                    gs_offset: SAVED_FLAGS_OFFSET,
                });
                replacement(
                    machine,
                    insn,
                    cpu,
                    Ending::Post {
                        stub: machine.stub(),
                        saved_flags,
                    },
                )
            }
            Method::Step => stepped(machine, insn, cpu),
        };
        let context = || format!("{insn:?} by {method:?} ({:?})", machine.layout);
        let out_of_line = result.map_err(|e| format!("{}: {e}", context()))?;
        difference(machine, cpu, &native, &out_of_line, method)
            .map_err(|e| format!("{}: {e}", context()))?;
    }
    Ok(native.fault.is_none())
}

/// Like [`compare`], by all methods, panicking at a difference. Replacements that cannot reach the
/// operand are left out.
pub fn check(machine: &mut Machine, insn: &Insn, cpu: &Cpu) {
    let methods = [Method::Resume, Method::Post, Method::Step];
    let reachable = reaches_operand(insn, machine.slot());
    if !reachable {
        let refused = Err(Refusal::DisplacementRange);
        assert_eq!(
            translate(insn, machine.slot(), Ending::Resume).map(drop),
            refused
        );
        assert_eq!(step_copy(insn, machine.slot()).map(drop), refused);
    }
    if let Err(difference) = compare(machine, insn, cpu, if reachable { &methods } else { &[] }) {
        panic!("{difference}");
    }
}

/// Whether code at `slot` reaches the operand of `insn`, by the bytes and the layout, whatever
/// `translate` says.
fn reaches_operand(insn: &Insn, slot: u64) -> bool {
    let decoded = Decoder::with_ip(64, insn.bytes(), insn.ip(), DecoderOptions::NONE).decode();
    // An address of 32 bits wraps.
    decoded.memory_base() != Register::RIP
        || [slot, slot + Translation::MAX_BYTES as u64]
            .iter()
            .all(|&from| {
                let distance = decoded.ip_rel_memory_address().wrapping_sub(from);
                i32::try_from(distance as i64).is_ok()
            })
}

fn outcome(machine: &Machine, mut cpu: Cpu, stop: Stop) -> Result<Outcome, String> {
    let fault = match stop {
        Stop::Int3 { at } => {
            cpu.ip = at;
            None
        }
        Stop::Fetch { at } => {
            cpu.ip = at;
            None
        }
        Stop::Fault {
            vector,
            error,
            address,
        } => Some((vector, error, address)),
        Stop::Debug => return Err("unexpected #DB".into()),
    };
    Ok(Outcome {
        cpu,
        fault,
        memory: machine.memory().to_vec(),
    })
}

fn replacement(
    machine: &mut Machine,
    insn: &Insn,
    cpu: &Cpu,
    ending: Ending,
) -> Result<Outcome, String> {
    let slot = machine.slot();
    let translation =
        translate(insn, slot, ending).map_err(|e| format!("refused: {}", e.name()))?;
    let mut cpu = Cpu {
        ip: slot,
        ..cpu.clone()
    };
    machine.prepare(slot, translation.code());
    if let Some(op) = symbolic::emulated(insn, ending) {
        emulate(machine, op, &mut cpu);
    }
    let stop = machine.resume(&mut cpu);
    let post = ending != Ending::Resume;
    match stop {
        Stop::Int3 { at } if post && at == machine.stub() => {
            let exit = machine
                .read(cpu.gpr[RSP])
                .ok_or("no exit address at the stub")?;
            cpu.gpr[RSP] += 8;
            outcome(machine, cpu, Stop::Int3 { at: exit })
        }
        Stop::Int3 { at } | Stop::Fetch { at } if post || machine.in_slot_page(at) => Err(format!(
            "left the slot at {at:#x}, not by the exit: {:02x?}",
            translation.code()
        )),
        Stop::Int3 { .. } | Stop::Fetch { .. } => outcome(machine, cpu, stop),
        Stop::Fault { .. } if cpu.ip.wrapping_sub(slot) < translation.code().len() as u64 => {
            let offset = (cpu.ip - slot) as usize;
            let position = translation.position(offset);
            if position.ip != ResumeIp::Known(insn.ip()) {
                return Err(format!(
                    "{stop:x?} past the commit point, at offset {offset}"
                ));
            }
            cpu.ip = insn.ip();
            cpu.gpr[RSP] = cpu.gpr[RSP].wrapping_add_signed(position.rsp_correction.into());
            outcome(machine, cpu, stop)
        }
        Stop::Fault { .. } | Stop::Debug => Err(format!("{stop:x?} at {:#x}", cpu.ip)),
    }
}

/// Carries out what the replacement leaves to its caller, as a kernel does.
fn emulate(machine: &mut Machine, op: FlagsOp, cpu: &mut Cpu) {
    let popped = machine.read(cpu.gpr[RSP]).unwrap_or_default();
    cpu.gpr[RSP] = cpu.gpr[RSP].wrapping_add_signed(op.rsp_delta());
    if let FlagsOp::Push(size) = op {
        let image = flags::pushed_image(cpu.flags).to_le_bytes();
        let bytes = if size == OperandSize::Word {
            &image[..2]
        } else {
            &image
        };
        machine.write(cpu.gpr[RSP], bytes);
    }
    cpu.flags = op.apply(cpu.flags, popped);
}

fn stepped(machine: &mut Machine, insn: &Insn, cpu: &Cpu) -> Result<Outcome, String> {
    let slot = machine.slot();
    let copy = step_copy(insn, slot).map_err(|e| format!("refused: {}", e.name()))?;
    let before = cpu.flags;
    let mut cpu = Cpu {
        ip: slot,
        ..cpu.clone()
    };
    machine.prepare(slot, copy.code());
    loop {
        cpu.flags |= flags::bits::TF;
        let stop = machine.resume(&mut cpu);
        let mut regs = PtRegs {
            ip: cpu.ip,
            sp: cpu.gpr[RSP],
            flags: cpu.flags,
            ..PtRegs::default()
        };
        match stop {
            Stop::Debug => {
                let progress = copy.finish(&mut regs, before, |address, bytes| {
                    machine.write(address, bytes)
                });
                if progress == StepProgress::Unfinished {
                    assert_eq!((regs.ip, regs.flags), (cpu.ip, cpu.flags));
                    continue;
                }
                (cpu.ip, cpu.flags) = (regs.ip, regs.flags);
                return outcome(machine, cpu.clone(), Stop::Int3 { at: cpu.ip });
            }
            Stop::Fault { .. } if cpu.ip.wrapping_sub(slot) < copy.code().len() as u64 => {
                // As a kernel does: the fault is one of the probed address.
                let kept = flags::bits::TF | flags::bits::IF;
                cpu.ip = insn.ip();
                cpu.flags = (cpu.flags & !(kept | flags::bits::RF)) | (before & kept);
                return outcome(machine, cpu, stop);
            }
            _ => return Err(format!("{stop:x?} at {:#x} while stepping", cpu.ip)),
        }
    }
}

fn difference(
    machine: &Machine,
    before: &Cpu,
    native: &Outcome,
    other: &Outcome,
    method: Method,
) -> Result<(), String> {
    const GENERAL_PROTECTION: u64 = 13;
    if method == Method::Post
        && matches!(native.fault, Some((GENERAL_PROTECTION, ..)))
        && other.fault.is_none()
        && !is_canonical(other.cpu.ip)
    {
        // The processor refuses the branch; with a post ending it is up to the stub to do so.
        return Ok(());
    }
    if native.fault != other.fault {
        return Err(format!(
            "faults (vector, error, address): in place {:x?}, here {:x?}",
            native.fault, other.fault
        ));
    }
    if native.cpu.ip != other.cpu.ip {
        return Err(format!(
            "ip: in place {:#x}, here {:#x}",
            native.cpu.ip, other.cpu.ip
        ));
    }
    for (number, (a, b)) in native.cpu.gpr.iter().zip(&other.cpu.gpr).enumerate() {
        if a != b {
            return Err(format!("register {number}: in place {a:#x}, here {b:#x}"));
        }
    }
    if (native.cpu.flags ^ other.cpu.flags) & COMPARED_FLAGS != 0 {
        return Err(format!(
            "flags: in place {:#x}, here {:#x}",
            native.cpu.flags, other.cpu.flags
        ));
    }
    let (a, b) = (native.cpu.comparable_fx(), other.cpu.comparable_fx());
    if a != b {
        return Err(format!("x87/SSE state: in place {a:02x?}, here {b:02x?}"));
    }
    let upper = native.cpu.upper.iter().zip(&other.cpu.upper);
    if let Some(byte) = upper.clone().position(|(a, b)| a != b) {
        return Err(format!("vector registers beyond SSE differ at byte {byte}"));
    }
    // Dead are the scratch space below RSP on arrival and on departure, as far as it lies below RSP
    // on departure.
    let (start, end) = (before.gpr[RSP], native.cpu.gpr[RSP]);
    let dead = |address: u64| {
        address < end
            && (end - address <= SCRATCH_BYTES
                || start.wrapping_sub(address).wrapping_sub(1) < SCRATCH_BYTES)
    };
    const LINE: usize = 64;
    let lines = native.memory.chunks(LINE).zip(other.memory.chunks(LINE));
    for (number, (in_place, here)) in lines.enumerate().filter(|(_, (a, b))| a != b) {
        for (i, (a, b)) in in_place.iter().zip(here).enumerate() {
            let address = machine.data() + (number * LINE + i) as u64;
            if a != b && !dead(address) {
                return Err(format!(
                    "memory at {address:#x} (rsp {end:#x}): in place {a:#x}, here {b:#x}"
                ));
            }
        }
    }
    Ok(())
}

fn is_canonical(address: u64) -> bool {
    let upper = (address as i64) >> 47;
    upper == 0 || upper == -1
}
