//! Static marks: places in a program that a tracer finds by their names.
//!
//! [`mark!`](crate::mark) names a place in the source, and values that a tracer may want there:
//!
//! ```text
//!   mark!(shop, sold, u32: count, i64: price);      in the program
//!   usdt:/bin/PROGRAM:shop:sold { print(arg1); }    in the tracer
//! ```
//!
//! A mark is one `nop`, and the values in registers. A note in the program's file has the address
//! of the `nop`, the names, and where the values are. The note is not loaded. It has the form that
//! SystemTap gave to such notes, so other tracers know it as well: owner `stapsdt`, type 3, three
//! words of 8 bytes (the address, the base, the semaphore), then provider, name and arguments, each
//! with a NUL after it. Base and semaphore are 0: nothing moves the programs, and no word counts
//! the tracers.
//!
//! # Cost
//! The values are computed at each pass, also when nobody traces. So give what is there already.

#![no_std]
#![forbid(unsafe_code)]

/// A type that values of a mark may have.
pub trait Argument: Copy {
    /// How many bytes of the word count. Negative: the highest of their bits is a sign.
    const BYTES: i32;

    /// The value in a register.
    fn word(self) -> u64;
}

const fn plain<T>() -> i32 {
    size_of::<T>() as i32
}

const fn with_sign<T>() -> i32 {
    -plain::<T>()
}

macro_rules! integers {
    ($($bytes:ident: $($integer:ident)*;)*) => {$($(
        impl Argument for $integer {
            const BYTES: i32 = $bytes::<Self>();

            #[inline(always)]
            fn word(self) -> u64 {
                self as u64
            }
        }
    )*)*};
}

integers! {
    plain: u8 u16 u32 u64 usize bool char;
    with_sign: i8 i16 i32 i64 isize;
}

/// Its address.
impl<T> Argument for *const T {
    const BYTES: i32 = 8;

    #[inline(always)]
    fn word(self) -> u64 {
        self.addr() as u64
    }
}

/// Its address.
impl<T> Argument for &T {
    const BYTES: i32 = 8;

    #[inline(always)]
    fn word(self) -> u64 {
        core::ptr::from_ref(self).word()
    }
}

/// Marks this place: `mark!(PROVIDER, NAME, TYPE: VALUE, …)`, with up to six values of types that
/// are an [`Argument`]. PROVIDER and NAME are plain words.
///
/// A text is two values: `*const u8: text.as_ptr(), usize: text.len()`.
#[macro_export]
macro_rules! mark {
    ($provider:ident, $name:ident $(,)?) => {
        $crate::place_mark!($provider, $name, "", [])
    };
    ($provider:ident, $name:ident, $t0:ty: $v0:expr $(,)?) => {
        $crate::place_mark!($provider, $name, "{b0}@%{v0}", [b0 v0 $t0 { $v0 }])
    };
    ($provider:ident, $name:ident, $t0:ty: $v0:expr, $t1:ty: $v1:expr $(,)?) => {
        $crate::place_mark!(
            $provider, $name, "{b0}@%{v0} {b1}@%{v1}",
            [b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }]
        )
    };
    ($provider:ident, $name:ident, $t0:ty: $v0:expr, $t1:ty: $v1:expr, $t2:ty: $v2:expr $(,)?) => {
        $crate::place_mark!(
            $provider, $name, "{b0}@%{v0} {b1}@%{v1} {b2}@%{v2}",
            [b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }, b2 v2 $t2 { $v2 }]
        )
    };
    (
        $provider:ident, $name:ident, $t0:ty: $v0:expr, $t1:ty: $v1:expr, $t2:ty: $v2:expr,
        $t3:ty: $v3:expr $(,)?
    ) => {
        $crate::place_mark!(
            $provider, $name, "{b0}@%{v0} {b1}@%{v1} {b2}@%{v2} {b3}@%{v3}",
            [b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }, b2 v2 $t2 { $v2 }, b3 v3 $t3 { $v3 }]
        )
    };
    (
        $provider:ident, $name:ident, $t0:ty: $v0:expr, $t1:ty: $v1:expr, $t2:ty: $v2:expr,
        $t3:ty: $v3:expr, $t4:ty: $v4:expr $(,)?
    ) => {
        $crate::place_mark!(
            $provider, $name, "{b0}@%{v0} {b1}@%{v1} {b2}@%{v2} {b3}@%{v3} {b4}@%{v4}",
            [
                b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }, b2 v2 $t2 { $v2 }, b3 v3 $t3 { $v3 },
                b4 v4 $t4 { $v4 }
            ]
        )
    };
    (
        $provider:ident, $name:ident, $t0:ty: $v0:expr, $t1:ty: $v1:expr, $t2:ty: $v2:expr,
        $t3:ty: $v3:expr, $t4:ty: $v4:expr, $t5:ty: $v5:expr $(,)?
    ) => {
        $crate::place_mark!(
            $provider, $name, "{b0}@%{v0} {b1}@%{v1} {b2}@%{v2} {b3}@%{v3} {b4}@%{v4} {b5}@%{v5}",
            [
                b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }, b2 v2 $t2 { $v2 }, b3 v3 $t3 { $v3 },
                b4 v4 $t4 { $v4 }, b5 v5 $t5 { $v5 }
            ]
        )
    };
}

/// The instruction and the note of a [`mark!`](crate::mark), for it alone.
#[doc(hidden)]
#[macro_export]
macro_rules! place_mark {
    (
        $provider:ident, $name:ident, $arguments:literal,
        [$($bytes:ident $value:ident $of:ty { $given:expr }),*]
    ) => {
        // SAFETY: the code is one `nop`. The rest is in a section that is not loaded.
        unsafe {
            ::core::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt, \"\", \"note\"",
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b, 0, 0",
                ::core::concat!(".asciz \"", ::core::stringify!($provider), "\""),
                ::core::concat!(".asciz \"", ::core::stringify!($name), "\""),
                ::core::concat!(".asciz \"", $arguments, "\""),
                "994: .balign 4",
                ".popsection",
                $(
                    $bytes = const <$of as $crate::Argument>::BYTES,
                    $value = in(reg) <$of as $crate::Argument>::word($given),
                )*
                // It reads memory, so a tracer finds there what the program has written.
                options(nostack, preserves_flags, readonly),
            )
        }
    };
}

#[cfg(test)]
mod tests {
    use super::Argument;

    #[test]
    fn values_have_their_bytes_and_their_sign() {
        fn of<T: Argument>(value: T) -> (i32, u64) {
            (T::BYTES, value.word())
        }
        assert_eq!(of(200_u8), (1, 200));
        assert_eq!(of(-2_i16), (-2, (-2_i64).cast_unsigned()));
        assert_eq!(of('ß'), (4, 0xdf));
        assert_eq!(of(true), (1, 1));
        assert_eq!(of(u64::MAX), (8, u64::MAX));
        let word = &5_u32;
        assert_eq!(of(word), of(core::ptr::from_ref(word)));
    }
}
