//! Parameters of modules: their types, and where their values are kept.

use alloc::boxed::Box;
use core::{
    any::TypeId,
    fmt::{self, Display},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};
use params::{BadValue, Value};

/// A parameter of type `T`.
pub struct Param<T: ParamType> {
    name: &'static str,
    help: &'static [&'static str],
    default: T,
    /// The value that was given; null: the default.
    given: AtomicPtr<Given<T>>,
    /// Every value that ever was given, each once, newest first. Users give few different values,
    /// so this stays small. It is never freed (MODULE-2).
    all_given: AtomicPtr<Given<T>>,
}

struct Given<T> {
    value: T,
    next: *const Given<T>,
}

// SAFETY: the pointers lead to leaked, immutable `Given` nodes (MODULE-2). Any thread may read
// them, because `T` is `Sync`.
unsafe impl<T: ParamType> Sync for Param<T> {}

impl<T: ParamType> Param<T> {
    #[doc(hidden)]
    pub const fn new(name: &'static str, help: &'static [&'static str], default: T) -> Self {
        Self {
            name,
            help,
            default,
            given: AtomicPtr::new(ptr::null_mut()),
            all_given: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The value. Any context.
    pub fn get(&self) -> T {
        // Acquire pairs with the Release in `set`. SAFETY: null or a leaked node (MODULE-2).
        unsafe { self.given.load(Ordering::Acquire).as_ref() }
            .map_or(self.default, |given| given.value)
    }
}

/// A module's parameter, whatever its type.
pub trait AnyParam: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Its help text, line by line.
    fn help(&self) -> &'static [&'static str];
    /// Prints its value.
    fn fmt_value(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// Whether it is a `bool`.
    fn is_switch(&self) -> bool;
    #[doc(hidden)]
    fn set(&self, value: Option<&str>) -> Result<(), BadValue>;
    #[doc(hidden)]
    fn reset(&self);
}

impl<T: ParamType> AnyParam for Param<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn help(&self) -> &'static [&'static str] {
        self.help
    }

    fn fmt_value(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }

    fn is_switch(&self) -> bool {
        TypeId::of::<T>() == TypeId::of::<bool>()
    }

    fn set(&self, text: Option<&str>) -> Result<(), BadValue> {
        let first = self.all_given.load(Ordering::Relaxed);
        let mut node: *const Given<T> = first;
        // SAFETY: null or a leaked node (MODULE-2).
        while let Some(given) = unsafe { node.as_ref() } {
            if given.value.is(text) {
                break;
            }
            node = given.next;
        }
        if node.is_null() {
            node = Box::leak(Box::new(Given {
                value: T::keep(text)?,
                next: first,
            }));
            // By MODULE-1 no other task sets parameters of this module now.
            self.all_given.store(node.cast_mut(), Ordering::Relaxed);
        }
        self.given.store(node.cast_mut(), Ordering::Release);
        Ok(())
    }

    fn reset(&self) {
        self.given.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// A type that a parameter may have.
pub trait ParamType: Copy + Display + Send + Sync + 'static {
    /// Whether `text` stands for this value.
    fn is(&self, text: Option<&str>) -> bool;
    /// Makes a value from text, and copies the text if the value needs it.
    fn keep(text: Option<&str>) -> Result<Self, BadValue>;
}

macro_rules! plain_param_types {
    ($($type:ty)+) => {
        $(impl ParamType for $type {
            fn is(&self, text: Option<&str>) -> bool {
                Self::parse(text) == Ok(*self)
            }

            fn keep(text: Option<&str>) -> Result<Self, BadValue> {
                Self::parse(text)
            }
        })+
    };
}

plain_param_types! { bool i32 u32 i64 u64 usize }

impl ParamType for &'static str {
    fn is(&self, text: Option<&str>) -> bool {
        text == Some(*self)
    }

    fn keep(text: Option<&str>) -> Result<Self, BadValue> {
        let text = <&str>::parse(text)?;
        Ok(Box::leak(Box::from(text)))
    }
}
