//! The program at a function that aims a watch at what the call leads to.

use bpf::{Helper, Reg};

use super::Program;
use crate::{Lowered, watches::Aim};

impl Program<'_, '_> {
    /// Compiles all of the program. A call whose memory is not there leaves the watch where it is.
    pub(crate) fn aim(&mut self, aim: &Aim) {
        if let Err(error) = self.try_aim(aim) {
            self.values().tables.error(error);
        }
        self.code.asm.place(self.end);
        self.code.asm.exit(0);
    }

    fn try_aim(&mut self, aim: &Aim) -> Lowered<()> {
        let memory = aim.memory(self.values())?;
        self.code.branch_on(&memory.present, false, self.end);
        self.code.number(&memory.address);
        self.code.asm.mov(Reg::R2, Reg::R0);
        self.code.asm.set(Reg::R1, aim.number.into());
        self.code.asm.call(Helper::AimWatch);
        Ok(())
    }
}
