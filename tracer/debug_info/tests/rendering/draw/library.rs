//! Types of the language and of the library, and how values of them are written.
//!
//! Numbers are small, large, or the ends of what there is. In the texts of a type with parameters
//! each mention of one is another value of it.

use instruction_cases::Random;

/// A type of the language or the library without parameters.
pub struct Plain {
    pub name: &'static str,
    pub value: fn(&mut Random) -> String,
    /// It is ordered, so it may be a key.
    pub is_key: bool,
    /// A packed structure may have it.
    pub is_copy: bool,
}

const fn number(name: &'static str, value: fn(&mut Random) -> String) -> Plain {
    Plain {
        name,
        value,
        is_key: true,
        is_copy: true,
    }
}

macro_rules! integer {
    ($type:ident) => {
        number(stringify!($type), |random| {
            let wide = u128::from(random.next()) << 64 | u128::from(random.next());
            let value = match random.below(6) {
                0 => $type::MIN,
                1 => $type::MAX,
                2 => 0,
                3 => (wide % 11) as $type,
                4 => (wide >> random.below(128)) as $type,
                _ => wide as $type,
            };
            format!("{value}_{}", stringify!($type))
        })
    };
}

macro_rules! floating {
    ($type:ident, $bits:ident) => {
        Plain {
            is_key: false,
            ..number(stringify!($type), |random| {
                let bits = match random.below(4) {
                    0 => random.of(&[0.0, -0.0, 1.0, 0.1, 1e16, 1e15, 1e-5, 0.3, $type::NAN]),
                    1 => random.of(&[$type::MIN, $type::EPSILON, $type::INFINITY, 1e-7, 1e21]),
                    2 => random.below(100_000) as $type / 100.0,
                    _ => $type::from_bits(random.next() as $bits),
                };
                format!("{}::from_bits({:#x})", stringify!($type), bits.to_bits())
            })
        }
    };
}

macro_rules! nonzero {
    ($name:literal, $type:ident) => {
        number($name, |random| {
            let odd = random.next() as $type | 1;
            let value = random.of(&[1, $type::MAX, odd]);
            format!(concat!($name, "::new({}).unwrap()"), value)
        })
    };
}

const TEXTS: [&str; 12] = [
    "",
    "a",
    "two words",
    "\"quoted\" \\",
    "tab\tend\n",
    "naïve",
    "日本",
    "nul\0in",
    "e\u{301}",
    "🦀",
    "\u{7f}\u{80}",
    "[1, 2]",
];

fn text(random: &mut Random) -> String {
    format!("{:?}", random.of(&TEXTS))
}

pub const PLAIN: [Plain; 36] = [
    integer!(u8),
    integer!(i8),
    integer!(u16),
    integer!(i16),
    integer!(u32),
    integer!(i32),
    integer!(u64),
    integer!(i64),
    integer!(u128),
    integer!(i128),
    integer!(usize),
    integer!(isize),
    floating!(f32, u32),
    floating!(f64, u64),
    nonzero!("NonZeroU8", u8),
    nonzero!("NonZeroI16", i16),
    nonzero!("NonZeroU64", u64),
    nonzero!("NonZeroI128", i128),
    number("bool", |random| random.of(&["true", "false"]).into()),
    number("char", |random| {
        let letters = [
            'a',
            '\'',
            '"',
            '\\',
            '\n',
            '\0',
            'ß',
            '\u{301}',
            '\u{10ffff}',
        ];
        format!("{:?}", random.of(&letters))
    }),
    number("()", |_| "()".into()),
    number("Ordering", |random| {
        format!("Ordering::{}", random.of(&["Less", "Equal", "Greater"]))
    }),
    Plain {
        is_copy: false,
        ..number("&'static str", text)
    },
    Plain {
        is_copy: false,
        ..number("String", |random| format!("String::from({})", text(random)))
    },
    Plain {
        is_copy: false,
        ..number("Box<str>", |random| format!("Box::from({})", text(random)))
    },
    Plain {
        is_copy: false,
        ..number("Arc<str>", |random| format!("Arc::from({})", text(random)))
    },
    Plain {
        is_copy: false,
        ..number("Cow<'static, str>", |random| {
            let form = random.of(&["Borrowed(", "Owned(String::from("]);
            let end = if form.ends_with("from(") { "))" } else { ")" };
            format!("Cow::{form}{}{end}", text(random))
        })
    },
    number("Ipv4Addr", |random| {
        format!("Ipv4Addr::from_bits({})", random.next() as u32)
    }),
    number("Ipv6Addr", |random| {
        let bits = u128::from(random.next()) << random.below(65);
        format!("Ipv6Addr::from_bits({bits})")
    }),
    number("IpAddr", |random| {
        format!("IpAddr::V4(Ipv4Addr::from_bits({}))", random.next() as u32)
    }),
    Plain {
        is_key: false,
        ..number("Layout", |_| "Layout::new::<(u8, u32)>()".into())
    },
    Plain {
        is_copy: false,
        ..number("&'static CStr", |random| {
            format!("c{:?}", random.of(&["", "a", "b\\ c", "é"]))
        })
    },
    Plain {
        is_copy: false,
        ..number("CString", |random| {
            format!("CString::from(c{:?})", random.of(&["", "a", "\t"]))
        })
    },
    Plain {
        is_key: false,
        is_copy: false,
        ..number("AtomicU16", |random| {
            format!("AtomicU16::new({})", random.next() as u16)
        })
    },
    Plain {
        is_key: false,
        is_copy: false,
        ..number("AtomicBool", |random| {
            format!("AtomicBool::new({})", random.one_in(2))
        })
    },
    number("Duration", |random| {
        let nanoseconds = random.of(&[0, 1, 999_999_999, 1_500_000, 250, 7_000]);
        let many = random.next() >> 40;
        let seconds = random.of(&[0, 1, u64::MAX, many]);
        format!("Duration::new({seconds}, {nanoseconds})")
    }),
];

/// A type that nothing is of.
pub const NEVER: Plain = number("Infallible", |_| unreachable!("nothing is drawn of it"));

/// A type of the library with parameters. In the texts `{0}` and `{1}` are theirs; in those of
/// values each is drawn anew.
pub struct Generic {
    pub name: &'static str,
    /// The first one has no value in it, or as few as can be.
    pub values: &'static [&'static str],
    /// What the first parameter has to be.
    pub first: First,
    /// Only a program with the system's library has it.
    pub is_of_system: bool,
    /// A type may have itself in it.
    pub is_behind: bool,
    pub parts: Parts,
}

impl Generic {
    pub fn parameters(&self) -> usize {
        1 + usize::from(self.name.contains("{1}"))
    }
}

/// The parts of a value that a trace has names for.
#[derive(Clone, Copy, PartialEq)]
pub enum Parts {
    None,
    /// Those of what it leads to, as which it is shown.
    Behind,
    /// None, and it is shown as its content.
    Around,
    /// The content of an `Option`.
    Some,
    Elements,
}

#[derive(Clone, Copy, PartialEq)]
pub enum First {
    Any,
    Key,
    Copied,
}

const fn generic(name: &'static str, values: &'static [&'static str]) -> Generic {
    Generic {
        name,
        values,
        first: First::Any,
        is_of_system: false,
        is_behind: false,
        parts: Parts::None,
    }
}

const fn with_first(first: First, generic: Generic) -> Generic {
    Generic { first, ..generic }
}

const fn with_parts(parts: Parts, generic: Generic) -> Generic {
    Generic { parts, ..generic }
}

const fn of_system(generic: Generic) -> Generic {
    Generic {
        is_of_system: true,
        ..generic
    }
}

const fn behind(generic: Generic) -> Generic {
    Generic {
        is_behind: true,
        ..generic
    }
}

pub const GENERIC: [Generic; 66] = [
    with_parts(
        Parts::Some,
        generic("Option<{0}>", &["None", "Some({0})", "Some({0})"]),
    ),
    behind(generic(
        "Option<Box<{0}>>",
        &["None", "Some(Box::new({0}))"],
    )),
    behind(generic("Option<Rc<{0}>>", &["None", "Some(Rc::new({0}))"])),
    behind(generic(
        "Option<&'static {0}>",
        &["None", "Some(leak({0}))"],
    )),
    generic(
        "Option<Option<{0}>>",
        &["None", "Some(None)", "Some(Some({0}))"],
    ),
    generic("Result<{0}, {1}>", &["Ok({0})", "Err({1})"]),
    generic("Result<{0}, Infallible>", &["Ok({0})"]),
    generic("Result<Infallible, {0}>", &["Err({0})"]),
    with_parts(Parts::Behind, generic("Box<{0}>", &["Box::new({0})"])),
    with_parts(Parts::Behind, generic("Rc<{0}>", &["Rc::new({0})"])),
    with_parts(Parts::Behind, generic("Arc<{0}>", &["Arc::new({0})"])),
    with_parts(Parts::Behind, generic("&'static {0}", &["leak({0})"])),
    with_parts(
        Parts::Behind,
        generic("&'static mut {0}", &["leak_mut({0})"]),
    ),
    with_parts(Parts::Behind, generic("Pin<Box<{0}>>", &["Box::pin({0})"])),
    with_parts(
        Parts::Elements,
        behind(generic(
            "Vec<{0}>",
            &[
                "vec![]",
                "vec![{0}]",
                "vec![{0}, {0}]",
                "roomy(vec![{0}, {0}, {0}])",
            ],
        )),
    ),
    with_parts(
        Parts::Elements,
        behind(generic(
            "&'static [{0}]",
            &[
                "slice(vec![])",
                "slice(vec![{0}])",
                "slice(vec![{0}, {0}, {0}])",
            ],
        )),
    ),
    with_parts(
        Parts::Elements,
        behind(generic(
            "Box<[{0}]>",
            &["Box::from([])", "Box::from([{0}])", "Box::from([{0}, {0}])"],
        )),
    ),
    with_parts(
        Parts::Elements,
        behind(generic(
            "Rc<[{0}]>",
            &["Rc::from([])", "Rc::from([{0}, {0}])"],
        )),
    ),
    with_parts(
        Parts::Elements,
        behind(generic(
            "VecDeque<{0}>",
            &[
                "VecDeque::new()",
                "VecDeque::from([{0}])",
                "turned(vec![{0}, {0}, {0}])",
            ],
        )),
    ),
    behind(generic(
        "LinkedList<{0}>",
        &["LinkedList::new()", "LinkedList::from([{0}, {0}])"],
    )),
    with_first(
        First::Key,
        generic(
            "BTreeSet<{0}>",
            &["BTreeSet::new()", "BTreeSet::from([{0}, {0}, {0}])"],
        ),
    ),
    with_first(
        First::Key,
        generic(
            "BinaryHeap<{0}>",
            &["BinaryHeap::new()", "BinaryHeap::from([{0}, {0}])"],
        ),
    ),
    with_first(
        First::Key,
        generic(
            "BTreeMap<{0}, {1}>",
            &[
                "BTreeMap::new()",
                "BTreeMap::from([({0}, {1}), ({0}, {1})])",
            ],
        ),
    ),
    of_system(with_first(
        First::Key,
        generic(
            "HashMap<{0}, {1}>",
            &["HashMap::new()", "HashMap::from([({0}, {1}), ({0}, {1})])"],
        ),
    )),
    of_system(with_first(
        First::Key,
        generic("HashSet<{0}>", &["HashSet::new()", "HashSet::from([{0}])"]),
    )),
    of_system(generic("Mutex<{0}>", &["Mutex::new({0})"])),
    of_system(generic("RwLock<{0}>", &["RwLock::new({0})"])),
    with_first(First::Copied, generic("Cell<{0}>", &["Cell::new({0})"])),
    generic("RefCell<{0}>", &["RefCell::new({0})"]),
    generic("OnceCell<{0}>", &["OnceCell::new()", "OnceCell::from({0})"]),
    generic("ManuallyDrop<{0}>", &["ManuallyDrop::new({0})"]),
    generic("Reverse<{0}>", &["Reverse({0})"]),
    generic("Poll<{0}>", &["Poll::Pending", "Poll::Ready({0})"]),
    generic(
        "ControlFlow<{0}, {1}>",
        &["ControlFlow::Break({0})", "ControlFlow::Continue({1})"],
    ),
    generic(
        "Bound<{0}>",
        &[
            "Bound::Unbounded",
            "Bound::Included({0})",
            "Bound::Excluded({0})",
        ],
    ),
    generic("Range<{0}>", &["({0})..({0})"]),
    generic("RangeInclusive<{0}>", &["({0})..=({0})"]),
    generic(
        "Grid<{0}, 2>",
        &["Grid { cells: [[{0}, {0}], [{0}, {0}]] }"],
    ),
    with_parts(Parts::Elements, generic("[{0}; 1]", &["[{0}]"])),
    with_parts(Parts::Elements, generic("[{0}; 3]", &["[{0}, {0}, {0}]"])),
    with_parts(
        Parts::Elements,
        generic("[{0}; 20]", &["core::array::from_fn(|_| {0})"]),
    ),
    generic(
        "BTreeMap<u16, {0}>",
        &["BTreeMap::from_iter((0..15_u16).map(|n| (n * 3, {0})))"],
    ),
    with_first(
        First::Key,
        generic(
            "BTreeSet<({0}, u8)>",
            &["BTreeSet::from_iter((0..30_u8).map(|n| ({0}, n)))"],
        ),
    ),
    of_system(generic(
        "HashMap<i8, {0}>",
        &["HashMap::from_iter((0..9_i8).map(|n| (n - 4, {0})))"],
    )),
    with_first(
        First::Copied,
        generic(
            "Cow<'static, [{0}]>",
            &["Cow::Borrowed(slice(vec![]))", "Cow::Owned(vec![{0}, {0}])"],
        ),
    ),
    with_first(First::Copied, generic("PhantomData<{0}>", &["PhantomData"])),
    with_first(
        First::Copied,
        generic("MaybeUninit<{0}>", &["MaybeUninit::new({0})"]),
    ),
    with_first(
        First::Copied,
        with_parts(Parts::Around, generic("Wrapping<{0}>", &["Wrapping({0})"])),
    ),
    with_first(
        First::Copied,
        with_parts(
            Parts::Around,
            generic("Saturating<{0}>", &["Saturating({0})"]),
        ),
    ),
    generic(
        "rc::Weak<{0}>",
        &["rc::Weak::new()", "Rc::downgrade(leak(Rc::new({0})))"],
    ),
    with_parts(
        Parts::Around,
        generic("Ref<'static, {0}>", &["leak(RefCell::new({0})).borrow()"]),
    ),
    with_parts(
        Parts::Around,
        generic(
            "RefMut<'static, {0}>",
            &["leak(RefCell::new({0})).borrow_mut()"],
        ),
    ),
    of_system(with_parts(
        Parts::Around,
        generic(
            "MutexGuard<'static, {0}>",
            &["leak(Mutex::new({0})).lock().unwrap()"],
        ),
    )),
    of_system(generic(
        "OnceLock<{0}>",
        &["OnceLock::new()", "OnceLock::from({0})"],
    )),
    generic("RangeFrom<{0}>", &["({0}).."]),
    generic("RangeTo<{0}>", &["..({0})"]),
    generic("RangeToInclusive<{0}>", &["..=({0})"]),
    generic(
        "vec::IntoIter<{0}>",
        &["vec![].into_iter()", "after(vec![{0}, {0}].into_iter())"],
    ),
    generic(
        "slice::Iter<'static, {0}>",
        &[
            "slice(vec![]).iter()",
            "after(slice(vec![{0}, {0}]).iter())",
        ],
    ),
    generic(
        "array::IntoIter<{0}, 3>",
        &["after([{0}, {0}, {0}].into_iter())"],
    ),
    generic(
        "option::IntoIter<{0}>",
        &["None.into_iter()", "Some({0}).into_iter()"],
    ),
    generic(
        "Rev<vec::IntoIter<{0}>>",
        &["vec![{0}, {0}].into_iter().rev()"],
    ),
    generic(
        "Enumerate<vec::IntoIter<{0}>>",
        &["after(vec![{0}, {0}].into_iter().enumerate())"],
    ),
    generic(
        "Skip<vec::IntoIter<{0}>>",
        &["vec![{0}, {0}].into_iter().skip(1)"],
    ),
    generic(
        "StepBy<vec::IntoIter<{0}>>",
        &["vec![{0}, {0}].into_iter().step_by(2)"],
    ),
    generic("[{0}; 0]", &["[]"]),
];
