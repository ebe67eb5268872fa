//! A histogram of the sizes that programs write, by powers of two: a program in place of a handler.
//!
//! The kernel verifies the program, compiles it and calls it straight from `vfs_write`. A handler
//! would do the same with a whole frame of registers and several times the instructions.

use core::fmt;

use kernel::{
    pr_info,
    probes::Kprobe,
    sync::Mutex,
    trace::{
        bpf::{
            Builder, Helper, MapDef, MapIndex, ProgramKind,
            Reg::{R0, R1, R2, R3},
            context::Register,
        },
        program::{AttachedProbe, LoadError, Program},
    },
};

kernel::module! {
    name: write_sizes,
    description: "Tells how large writes were, by powers of two",
    init: init,
    exit: exit,
}

static PROBE: Mutex<Option<(AttachedProbe, MapIndex)>> = Mutex::new(None);

fn init() -> Result<(), LoadError> {
    let mut b = Builder::new(ProgramKind::Probe);
    let sizes = b.map(MapDef::histogram("sizes"));
    // The third argument is the number of bytes.
    b.load_register(R1, Register::Dx)
        .call(Helper::Log2)
        .mov(R2, R0)
        .load_map(R1, sizes)
        .mov(R3, 1)
        .call(Helper::Add)
        .exit(0);
    let program = Program::load(b.finish()?)?;
    let probe = AttachedProbe::new(program, Kprobe::new().symbol("vfs_write"))?;
    *PROBE.lock() = Some((probe, sizes));
    Ok(())
}

fn exit() {
    if let Some((probe, sizes)) = PROBE.lock().take() {
        for bucket in 0..65 {
            let writes = probe.program().counter(sizes, bucket);
            if writes > 0 {
                pr_info!("{} {writes} writes", Range(bucket));
            }
        }
    }
}

/// The sizes of a bucket.
struct Range(usize);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0 bytes:"),
            bucket => write!(
                f,
                "{} to {} bytes:",
                1_u64 << (bucket - 1),
                u64::MAX >> (64 - bucket)
            ),
        }
    }
}
