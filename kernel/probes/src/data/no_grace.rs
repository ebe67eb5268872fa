//! A proof that no grace period ends.

use core::marker::PhantomData;

/// While a value of this type is around, no grace period ends. So nothing that was found in the
/// address table or by an address in a slot is freed, and references to it live as long as `'a`.
#[derive(Clone, Copy)]
pub struct NoGrace<'a>(PhantomData<&'a ()>);

impl NoGrace<'_> {
    /// A proof by other means than a value: interrupts are off, the guard is held, or the caller
    /// holds the registry's lock and frees nothing itself.
    ///
    /// # Safety
    /// No grace period ends while the value, or a reference that was got with it, is used.
    #[inline(always)]
    pub(crate) const unsafe fn assume() -> Self {
        Self(PhantomData)
    }
}
