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
//! with a NUL after it. The base is 0, because nothing moves the programs. The semaphore is the
//! address of a word that counts the tracers, or 0.
//!
//! # Cost
//! The values of a [`mark!`](crate::mark) are computed at each pass, also when nobody traces. So
//! give what is there already. [`lazy_mark!`](crate::lazy_mark) has a semaphore, and computes its
//! values only while somebody traces. Otherwise a pass is a load and a jump.

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
    ($provider:ident, $name:ident $($values:tt)*) => {
        $crate::mark_with_values!(["0";; $provider $name] $($values)*)
    };
}

/// The same, where the values are computed only while somebody traces the mark:
/// `lazy_mark!(PROVIDER, NAME, TYPE: VALUE, …)`. Nothing that the program needs may depend on that.
///
/// A tracer raises a word of the program by one while it has a probe here. It does so in each
/// process that runs the file, also in those that start later.
#[macro_export]
macro_rules! lazy_mark {
    ($provider:ident, $name:ident $($values:tt)*) => {{
        // Among the data that are in the file, because a tracer says where in the file it is.
        #[unsafe(link_section = ".data.probes")]
        static LISTENERS: ::core::sync::atomic::AtomicU16 = ::core::sync::atomic::AtomicU16::new(0);
        if LISTENERS.load(::core::sync::atomic::Ordering::Relaxed) != 0 {
            $crate::mark_with_values!(["{semaphore}"; LISTENERS; $provider $name] $($values)*)
        }
    }};
}

/// The place of a mark, for the macros above alone. First come how the note has the semaphore, the
/// static that it is, and the names; then the values.
#[doc(hidden)]
#[macro_export]
macro_rules! mark_with_values {
    ($head:tt $(,)?) => {
        $crate::place_mark!($head, "", [])
    };
    ($head:tt, $t0:ty: $v0:expr $(,)?) => {
        $crate::place_mark!($head, "{b0}@%{v0}", [b0 v0 $t0 { $v0 }])
    };
    ($head:tt, $t0:ty: $v0:expr, $t1:ty: $v1:expr $(,)?) => {
        $crate::place_mark!(
            $head, "{b0}@%{v0} {b1}@%{v1}",
            [b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }]
        )
    };
    ($head:tt, $t0:ty: $v0:expr, $t1:ty: $v1:expr, $t2:ty: $v2:expr $(,)?) => {
        $crate::place_mark!(
            $head, "{b0}@%{v0} {b1}@%{v1} {b2}@%{v2}",
            [b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }, b2 v2 $t2 { $v2 }]
        )
    };
    (
        $head:tt, $t0:ty: $v0:expr, $t1:ty: $v1:expr, $t2:ty: $v2:expr,
        $t3:ty: $v3:expr $(,)?
    ) => {
        $crate::place_mark!(
            $head, "{b0}@%{v0} {b1}@%{v1} {b2}@%{v2} {b3}@%{v3}",
            [b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }, b2 v2 $t2 { $v2 }, b3 v3 $t3 { $v3 }]
        )
    };
    (
        $head:tt, $t0:ty: $v0:expr, $t1:ty: $v1:expr, $t2:ty: $v2:expr,
        $t3:ty: $v3:expr, $t4:ty: $v4:expr $(,)?
    ) => {
        $crate::place_mark!(
            $head, "{b0}@%{v0} {b1}@%{v1} {b2}@%{v2} {b3}@%{v3} {b4}@%{v4}",
            [
                b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }, b2 v2 $t2 { $v2 }, b3 v3 $t3 { $v3 },
                b4 v4 $t4 { $v4 }
            ]
        )
    };
    (
        $head:tt, $t0:ty: $v0:expr, $t1:ty: $v1:expr, $t2:ty: $v2:expr,
        $t3:ty: $v3:expr, $t4:ty: $v4:expr, $t5:ty: $v5:expr $(,)?
    ) => {
        $crate::place_mark!(
            $head, "{b0}@%{v0} {b1}@%{v1} {b2}@%{v2} {b3}@%{v3} {b4}@%{v4} {b5}@%{v5}",
            [
                b0 v0 $t0 { $v0 }, b1 v1 $t1 { $v1 }, b2 v2 $t2 { $v2 }, b3 v3 $t3 { $v3 },
                b4 v4 $t4 { $v4 }, b5 v5 $t5 { $v5 }
            ]
        )
    };
}

/// The instruction and the note of a mark, for the macros above alone.
#[doc(hidden)]
#[macro_export]
macro_rules! place_mark {
    (
        [$word:literal; $($semaphore:ident)?; $provider:ident $name:ident], $arguments:literal,
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
                ::core::concat!("993: .8byte 990b, 0, ", $word),
                ::core::concat!(".asciz \"", ::core::stringify!($provider), "\""),
                ::core::concat!(".asciz \"", ::core::stringify!($name), "\""),
                ::core::concat!(".asciz \"", $arguments, "\""),
                "994: .balign 4",
                ".popsection",
                $(semaphore = sym $semaphore,)?
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
