//! Modules: parts that are compiled in, and loaded and unloaded at run time like those that
//! `insmod` and `rmmod` handle.
//!
//! [`module!`](crate::module!) describes a module and puts the description into the linker section
//! `.modules`. No other code has to know the module. Loading sets its parameters and calls its init
//! function; if that fails, the module stays unloaded. Unloading calls its exit function.
//!
//! ```text
//!   unloaded ──load──► coming ──init: Ok──► live ──unload──► going ──exit──► unloaded
//!       ▲                 └──── Err ──┐
//!       └─────────────────────────────┘
//! ```
//!
//! # Invariants
//! MODULE-1. The task that moves a module from `Unloaded` to `Coming`, or from `Live` to `Going`,
//!     is alone with it until the next move. So init and exit never run at the same time, nor
//!     twice.
//! MODULE-2. Parameters are written in the state `Coming`, before init, and when they are reset
//!     after exit. Values that were given once are never freed, so a reader in any context, however
//!     late, has a valid one.
//!
//! # Contexts
//! [`load`] and [`unload`] run in task context, and may sleep where init and exit do. Parameters
//! may be read anywhere.

mod error;
mod files;
mod param;

pub use error::{InitError, ModuleError};
pub use files::create_files;
pub use param::{AnyParam, Param, ParamType};

use crate::cmdline;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use params::{Args, name_eq};

/// Describes a module. One for each Rust module.
///
/// ```ignore
/// kernel::module! {
///     name: greeter,
///     description: "Greets when it is loaded",
///     params: {
///         /// The name to greet.
///         whom: &str = "world",
///         /// How often.
///         times: u32 = 1,
///         /// Say goodbye too.
///         polite: bool = false,
///     },
///     init: init,
///     exit: exit,
/// }
///
/// fn init() -> Result<(), Errno> {
///     for _ in 0..params().times {
///         pr_info!("Hello, {}", params().whom);
///     }
///     Ok(())
/// }
///
/// fn exit() {
///     if params().polite {
///         pr_info!("Goodbye");
///     }
/// }
/// ```
///
/// - `params` may be left out. A parameter is of type `&str`, `bool`, `i32`, `u32`, `i64`, `u64` or
///   `usize`. It has a default, which it takes again at each load. Its doc comment is its help
///   text. Values come from the command line (`greeter.times=3`) and from the arguments of
///   [`load`], which win.
/// - `params()` returns the values. Any context may call it.
/// - `init` returns `Result<(), E>`, where `E` is `Display` and converts into
///   [`Errno`](crate::errno::Errno).
#[macro_export]
macro_rules! module {
    (
        name: $name:ident,
        description: $description:literal,
        $(params: {
            $(
                $(#[doc = $help:literal])+
                $param:ident: $(& $str:ident)? $($type:ident)? = $default:expr
            ),+ $(,)?
        },)?
        init: $init:path,
        exit: $exit:path $(,)?
    ) => {
        $(
            /// The values of the module's parameters.
            #[derive(Clone, Copy, Debug)]
            pub struct Params {
                $($(#[doc = $help])+ pub $param: $(&'static $str)? $($type)?,)+
            }

            struct ParamCells {
                $($param: $crate::module::Param<$(&'static $str)? $($type)?>,)+
            }

            static PARAM_CELLS: ParamCells = ParamCells {
                $($param: $crate::module::Param::new(
                    ::core::stringify!($param),
                    &[$($help),+],
                    $default,
                ),)+
            };

            /// The values of the module's parameters. Any context.
            pub fn params() -> Params {
                Params { $($param: PARAM_CELLS.$param.get(),)+ }
            }
        )?

        const _: () = {
            fn __init() -> ::core::result::Result<(), $crate::module::InitError> {
                $init().map_err($crate::module::InitError::new)
            }

            static PARAMS: &[&dyn $crate::module::AnyParam] = &[$($(&PARAM_CELLS.$param,)+)?];

            static MODULE: $crate::module::Module = $crate::module::Module::new(
                ::core::stringify!($name),
                $description,
                PARAMS,
                __init,
                $exit,
            );

            #[used]
            #[unsafe(link_section = ".modules")]
            static ENTRY: &$crate::module::Module = &MODULE;
        };
    };
}

/// A module that is compiled in.
pub struct Module {
    name: &'static str,
    description: &'static str,
    params: &'static [&'static dyn AnyParam],
    init: fn() -> Result<(), InitError>,
    exit: fn(),
    /// A [`ModuleState`].
    state: AtomicU8,
    /// The number of its last load, counted since boot.
    load_number: AtomicU32,
}

/// The state of a module.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleState {
    /// Not loaded.
    Unloaded,
    /// Its init function runs.
    Coming,
    /// Loaded.
    Live,
    /// Its exit function runs.
    Going,
}

impl Module {
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        description: &'static str,
        params: &'static [&'static dyn AnyParam],
        init: fn() -> Result<(), InitError>,
        exit: fn(),
    ) -> Self {
        Self {
            name,
            description,
            params,
            init,
            exit,
            state: AtomicU8::new(ModuleState::Unloaded as u8),
            load_number: AtomicU32::new(0),
        }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// One sentence on what it does.
    pub const fn description(&self) -> &'static str {
        self.description
    }

    /// Its parameters.
    pub const fn params(&self) -> &'static [&'static dyn AnyParam] {
        self.params
    }

    /// Its state. It may have changed since it was read, unless the caller keeps other tasks from
    /// loading.
    pub fn state(&self) -> ModuleState {
        match self.state.load(Ordering::Acquire) {
            0 => ModuleState::Unloaded,
            1 => ModuleState::Coming,
            2 => ModuleState::Live,
            _ => ModuleState::Going,
        }
    }

    /// Moves from one state to another, or says which state it is in.
    fn advance(&self, from: ModuleState, to: ModuleState) -> Result<(), ModuleState> {
        // Acquire and Release: a task that sees a state also sees all stores made before it.
        self.state
            .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Relaxed)
            .map(drop)
            .map_err(|_| self.state())
    }

    fn param(&self, name: &str) -> Option<&'static dyn AnyParam> {
        self.params
            .iter()
            .copied()
            .find(|param| name_eq(param.name(), name))
    }

    fn set(&self, name: &str, value: Option<&str>) -> Result<(), ModuleError> {
        let Some(param) = self.param(name) else {
            return Err(ModuleError::UnknownParam {
                module: self.name,
                param: name.into(),
                known: self.params.iter().map(|param| param.name()).collect(),
            });
        };
        param.set(value).map_err(|reason| ModuleError::BadParam {
            module: self.name,
            param: param.name(),
            value: value.map(Into::into),
            reason,
        })
    }

    fn set_all(&self, args: &str) -> Result<(), ModuleError> {
        self.reset_params();
        for arg in cmdline::matching(|arg| {
            arg.module_param()
                .is_some_and(|(module, _)| name_eq(module, self.name))
        }) {
            if let Some((_, param)) = arg.module_param() {
                self.set(param, arg.value)?;
            }
        }
        Args::new(args).try_for_each(|arg| self.set(arg.name, arg.value))
    }

    fn reset_params(&self) {
        for param in self.params {
            param.reset();
        }
    }
}

/// Loads a module: sets its parameters from their defaults, the command line and `args`
/// (`name=value ...`), then calls its init function. On failure it stays unloaded. Task context.
///
/// # Errors
/// - ENOENT: no such module.
/// - EEXIST: loaded already.
/// - EBUSY: being loaded or unloaded.
/// - EINVAL: an unknown parameter or a bad value.
/// - The error of its init function.
pub fn load(name: &str, args: &str) -> Result<(), ModuleError> {
    let module = find(name)?;
    module
        .advance(ModuleState::Unloaded, ModuleState::Coming)
        .map_err(|state| match state {
            ModuleState::Live => ModuleError::AlreadyLoaded {
                module: module.name,
            },
            _ => ModuleError::Busy {
                module: module.name,
            },
        })?;
    let result = module.set_all(args).and_then(|()| {
        (module.init)().map_err(|error| ModuleError::Init {
            module: module.name,
            error,
        })
    });
    let state = if result.is_ok() {
        static LOADS: AtomicU32 = AtomicU32::new(0);
        module
            .load_number
            .store(LOADS.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        ModuleState::Live
    } else {
        module.reset_params();
        ModuleState::Unloaded
    };
    // Release: as in `advance`. By MODULE-1 no other task moves it meanwhile.
    module.state.store(state as u8, Ordering::Release);
    result
}

/// Unloads a module: calls its exit function. Task context.
///
/// # Errors
/// ENOENT: no such module, or not loaded. EBUSY: being loaded or unloaded.
pub fn unload(name: &str) -> Result<(), ModuleError> {
    let module = find(name)?;
    module
        .advance(ModuleState::Live, ModuleState::Going)
        .map_err(|state| match state {
            ModuleState::Unloaded => ModuleError::NotLoaded {
                module: module.name,
            },
            _ => ModuleError::Busy {
                module: module.name,
            },
        })?;
    (module.exit)();
    module.reset_params();
    // Release: as in `advance`.
    module
        .state
        .store(ModuleState::Unloaded as u8, Ordering::Release);
    Ok(())
}

/// All modules that are compiled in. Any context.
pub fn list() -> &'static [&'static Module] {
    unsafe extern "C" {
        static __modules_start: [usize; 0];
        static __modules_end: [usize; 0];
    }
    let (start, end) = (&raw const __modules_start, &raw const __modules_end);
    let count = (end.addr() - start.addr()) / size_of::<&Module>();
    // SAFETY: the linker script puts these symbols around the section `.modules`. It holds only the
    // `ENTRY` statics of `module!`, one after another, because each has the size of a pointer.
    unsafe { core::slice::from_raw_parts(start.cast(), count) }
}

/// The modules that are loaded, in the order in which they were. Task context.
pub fn loaded() -> Vec<&'static Module> {
    let mut live: Vec<_> = list()
        .iter()
        .copied()
        .filter(|module| module.state() == ModuleState::Live)
        .collect();
    live.sort_by_key(|module| module.load_number.load(Ordering::Relaxed));
    live
}

fn find(name: &str) -> Result<&'static Module, ModuleError> {
    list()
        .iter()
        .copied()
        .find(|module| name_eq(module.name, name))
        .ok_or_else(|| ModuleError::Unknown {
            module: name.into(),
            known: list().iter().map(|module| module.name).collect(),
        })
}

/// Whether a module that is compiled in has that parameter. Any context.
pub fn has_param(module: &str, param: &str) -> bool {
    list()
        .iter()
        .any(|candidate| name_eq(candidate.name, module) && candidate.param(param).is_some())
}
