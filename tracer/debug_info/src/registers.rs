//! The registers of instructions, as the tracer names them.

use trace_interface::symbols::Register;

/// The general register that an instruction's register is, or is a part of.
pub fn general(register: iced_x86::Register) -> Option<Register> {
    let register = register.full_register();
    let number = u8::try_from(register.number()).ok();
    number
        .filter(|_| register.is_gpr64())
        .and_then(Register::numbered)
}
