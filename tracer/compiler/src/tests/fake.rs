//! A kernel that is made up: its types, its functions, and where its values are.
//!
//! Nothing of it is in memory. Tests put there what they read: see [`super::world`].

use std::{collections::BTreeMap, rc::Rc, string::String, vec::Vec};

use trace_answers::{Symbol, Symbolize};
use trace_interface::symbols::{
    Enum, Expression, Field, Function, Kernel, Moment, Origin, Piece, ProbePlace, Register, Source,
    Struct, Tag, Type, TypeId, Unavailable, Variable, Variant,
};
use trace_language::parse;

use crate::{Compiled, Options, compile};

pub(super) const WRITE: u64 = script_world::PLACE;
pub(super) const READ: u64 = 0xffff_8000_0000_2000;
pub(super) const OPEN: u64 = 0xffff_8000_0000_3000;
pub(super) const SYS_OPEN: u64 = 0xffff_8000_0000_4000;

pub(super) const U8: TypeId = TypeId(1);
pub(super) const U32: TypeId = TypeId(2);
pub(super) const I64: TypeId = TypeId(3);
pub(super) const USIZE: TypeId = TypeId(4);
pub(super) const BOOL: TypeId = TypeId(5);
pub(super) const STR: TypeId = TypeId(6);
pub(super) const BYTES: TypeId = TypeId(7);
pub(super) const FILE: TypeId = TypeId(8);
pub(super) const FILE_REF: TypeId = TypeId(9);
pub(super) const ERRNO: TypeId = TypeId(10);
pub(super) const RESULT: TypeId = TypeId(11);
pub(super) const OPTION_REF: TypeId = TypeId(12);
pub(super) const MODE: TypeId = TypeId(13);
pub(super) const INODE: TypeId = TypeId(14);
pub(super) const INODE_REF: TypeId = TypeId(15);
pub(super) const CHAR: TypeId = TypeId(16);
pub(super) const UNIT: TypeId = TypeId(17);
pub(super) const SHAPE: TypeId = TypeId(18);
pub(super) const WORDS: TypeId = TypeId(19);
pub(super) const F64: TypeId = TypeId(20);
pub(super) const I32: TypeId = TypeId(21);
pub(super) const STRING: TypeId = TypeId(22);
pub(super) const VEC: TypeId = TypeId(23);
pub(super) const BUF: TypeId = TypeId(24);
pub(super) const BYTE_POINTER: TypeId = TypeId(25);
pub(super) const ARC: TypeId = TypeId(26);
pub(super) const ARC_POINTER: TypeId = TypeId(27);
pub(super) const ARC_INNER: TypeId = TypeId(28);
pub(super) const ATOMIC: TypeId = TypeId(29);
pub(super) const TASK: TypeId = TypeId(30);
pub(super) const TASK_REF: TypeId = TypeId(31);
pub(super) const LIST: TypeId = TypeId(32);
pub(super) const NAMES: TypeId = TypeId(33);
pub(super) const TRIPLE: TypeId = TypeId(34);
pub(super) const BLOCK: TypeId = TypeId(35);
/// Of enums that tests put there.
pub(super) const TAGGED: TypeId = TypeId(36);
/// Structures in each other: that of level N has this type plus N.
const TALL: u64 = 100;
const NARROW: u64 = 200;
/// There are more of them than are shown.
pub(super) const LEVELS: u64 = 12;

pub(super) struct Fake {
    pub(super) types: BTreeMap<TypeId, Rc<Type>>,
    pub(super) functions: Vec<Function>,
    pub(super) variables: BTreeMap<(u64, &'static str), Result<Variable, Unavailable>>,
    pub(super) returns: BTreeMap<u64, Variable>,
}

fn field(name: &str, offset: u64, type_id: TypeId) -> Field {
    Field {
        name: name.into(),
        offset,
        type_id,
    }
}

fn variant(name: &str, tag: Option<u64>, fields: Vec<Field>) -> Variant {
    Variant {
        name: name.into(),
        tag: tag.map(u128::from),
        fields,
    }
}

pub(super) fn in_register(type_id: TypeId, bytes: u32, register: Register) -> Variable {
    Variable {
        type_id,
        pieces: vec![Piece {
            bytes,
            source: Source::Value(Expression::Register(register)),
        }],
    }
}

pub(super) fn in_two(type_id: TypeId, first: Register, second: Register) -> Variable {
    let piece = |register| Piece {
        bytes: 8,
        source: Source::Value(Expression::Register(register)),
    };
    Variable {
        type_id,
        pieces: vec![piece(first), piece(second)],
    }
}

/// A value in memory, at the address in a register.
pub(super) fn behind(type_id: TypeId, bytes: u32, register: Register) -> Variable {
    Variable {
        type_id,
        pieces: vec![Piece {
            bytes,
            source: Source::Memory(Expression::Register(register)),
        }],
    }
}

/// Pieces of so many bytes, each in a register or missing.
pub(super) fn in_pieces(type_id: TypeId, pieces: &[(u32, Option<Register>)]) -> Variable {
    let piece = |(bytes, register): &(u32, Option<Register>)| Piece {
        bytes: *bytes,
        source: match register {
            Some(register) => Source::Value(Expression::Register(*register)),
            None => Source::Missing,
        },
    };
    Variable {
        type_id,
        pieces: pieces.iter().map(piece).collect(),
    }
}

impl Fake {
    pub(super) fn new() -> Self {
        let integer = |bytes, signed| Type::Integer { bytes, signed };
        let types = [
            (U8, integer(1, false)),
            (U32, integer(4, false)),
            (I64, integer(8, true)),
            (USIZE, integer(8, false)),
            (I32, integer(4, true)),
            (BOOL, Type::Boolean),
            (CHAR, Type::Character),
            (UNIT, Type::Unit),
            (F64, Type::Float { bytes: 8 }),
            (STR, Type::Str),
            (BYTES, Type::Slice { of: U8 }),
            (WORDS, Type::Slice { of: U32 }),
            (NAMES, Type::Slice { of: STR }),
            (
                FILE,
                Type::Struct(Struct {
                    name: "kernel::fs::File".into(),
                    bytes: 40,
                    fields: vec![
                        field("inode", 0, INODE_REF),
                        field("pos", 8, I64),
                        field("readable", 16, BOOL),
                        field("mode", 17, MODE),
                        field("name", 24, STR),
                    ],
                    parameters: Vec::new(),
                    origin: Origin::Source,
                }),
            ),
            (
                FILE_REF,
                Type::Pointer {
                    name: "&File".into(),
                    to: FILE,
                },
            ),
            (
                INODE,
                Type::Struct(Struct {
                    name: "Inode".into(),
                    bytes: 16,
                    fields: vec![field("number", 0, USIZE), field("links", 8, U32)],
                    parameters: Vec::new(),
                    origin: Origin::Source,
                }),
            ),
            (
                INODE_REF,
                Type::Pointer {
                    name: "&Inode".into(),
                    to: INODE,
                },
            ),
            (
                ERRNO,
                Type::Enum(Enum {
                    name: "Errno".into(),
                    bytes: 1,
                    tag: Some(Tag {
                        offset: 0,
                        bytes: 1,
                        signed: false,
                    }),
                    variants: vec![
                        variant("ENOENT", Some(2), Vec::new()),
                        variant("EBADF", Some(9), Vec::new()),
                    ],
                    origin: Origin::Source,
                }),
            ),
            (
                MODE,
                Type::Enum(Enum {
                    name: "Mode".into(),
                    bytes: 1,
                    tag: Some(Tag {
                        offset: 0,
                        bytes: 1,
                        signed: false,
                    }),
                    variants: vec![
                        variant("Read", Some(0), Vec::new()),
                        variant("Write", Some(1), Vec::new()),
                    ],
                    origin: Origin::Source,
                }),
            ),
            (
                RESULT,
                Type::Enum(Enum {
                    name: "Result<usize, Errno>".into(),
                    bytes: 16,
                    tag: Some(Tag {
                        offset: 0,
                        bytes: 1,
                        signed: false,
                    }),
                    variants: vec![
                        variant("Ok", Some(0), vec![field("0", 8, USIZE)]),
                        variant("Err", Some(1), vec![field("0", 1, ERRNO)]),
                    ],
                    origin: Origin::Source,
                }),
            ),
            (
                OPTION_REF,
                Type::Enum(Enum {
                    name: "Option<&Inode>".into(),
                    bytes: 8,
                    tag: Some(Tag {
                        offset: 0,
                        bytes: 8,
                        signed: false,
                    }),
                    variants: vec![
                        variant("None", Some(0), Vec::new()),
                        variant("Some", None, vec![field("0", 0, INODE_REF)]),
                    ],
                    origin: Origin::Source,
                }),
            ),
            (
                SHAPE,
                Type::Enum(Enum {
                    name: "Shape".into(),
                    bytes: 16,
                    tag: Some(Tag {
                        offset: 0,
                        bytes: 4,
                        signed: false,
                    }),
                    variants: vec![
                        variant("Point", Some(0), Vec::new()),
                        variant("Circle", Some(1), vec![field("0", 4, U32)]),
                        variant(
                            "Box",
                            Some(2),
                            vec![field("width", 4, U32), field("height", 8, I64)],
                        ),
                    ],
                    origin: Origin::Source,
                }),
            ),
        ];
        let structure = |name: &str, bytes, fields| {
            Type::Struct(Struct {
                name: name.into(),
                bytes,
                fields,
                parameters: match name {
                    "alloc::vec::Vec<File, alloc::alloc::Global>" => vec![FILE],
                    _ => vec![U8],
                },
                origin: Origin::Library,
            })
        };
        let pointer = |name: &str, to| Type::Pointer {
            name: name.into(),
            to,
        };
        let library = [
            (
                STRING,
                structure("alloc::string::String", 24, vec![field("vec", 0, VEC)]),
            ),
            (
                VEC,
                structure(
                    "Vec<u8, Global>",
                    24,
                    vec![field("buf", 0, BUF), field("len", 16, USIZE)],
                ),
            ),
            (
                BUF,
                structure(
                    "RawVec<u8>",
                    16,
                    vec![field("cap", 0, USIZE), field("ptr", 8, BYTE_POINTER)],
                ),
            ),
            (BYTE_POINTER, pointer("*const u8", U8)),
            (
                ARC,
                structure("Arc<Inode>", 8, vec![field("ptr", 0, ARC_POINTER)]),
            ),
            (ARC_POINTER, pointer("*const ArcInner<Inode>", ARC_INNER)),
            (
                ARC_INNER,
                structure(
                    "ArcInner<Inode>",
                    32,
                    vec![
                        field("strong", 0, USIZE),
                        field("weak", 8, USIZE),
                        field("data", 16, INODE),
                    ],
                ),
            ),
            (ATOMIC, structure("AtomicU32", 4, vec![field("v", 0, U32)])),
            (
                TASK,
                structure(
                    "Task",
                    64,
                    vec![
                        field("name", 0, STRING),
                        field("inode", 24, ARC),
                        field("pid", 32, ATOMIC),
                        field("list", 40, LIST),
                    ],
                ),
            ),
            (TASK_REF, pointer("&Task", TASK)),
            (TRIPLE, Type::Array { of: U32, count: 3 }),
            (
                LIST,
                structure(
                    "alloc::vec::Vec<File, alloc::alloc::Global>",
                    24,
                    vec![field("buf", 0, BUF), field("len", 16, USIZE)],
                ),
            ),
        ];
        let tall = (0..LEVELS).map(|level| {
            let inside = 16 * (LEVELS - 1 - level);
            let mut fields = vec![field("mark", 0, U32)];
            if level + 1 < LEVELS {
                fields.push(field("next", 8, TypeId(TALL + level + 1)));
            }
            fields.push(field("end", 8 + inside, USIZE));
            let of = structure(&format!("Tall{level}"), 16 + inside, fields);
            (TypeId(TALL + level), of)
        });
        // The last one has a number only, so it is as good as the number.
        let narrow = (0..7).map(|level| {
            let inside = 8 * (6 - level);
            let mut fields = vec![field("mark", 0, USIZE)];
            if level < 6 {
                fields.push(field("next", 8, TypeId(NARROW + level + 1)));
            }
            let name = match level {
                6 => "AtomicUsize".into(),
                _ => format!("Narrow{level}"),
            };
            (TypeId(NARROW + level), structure(&name, 8 + inside, fields))
        });
        let library = library
            .into_iter()
            .chain([(BLOCK, Type::Array { of: U32, count: 64 })]);
        let types = types.into_iter().chain(library).chain(tall).chain(narrow);
        let function = |path: &str, address| Function {
            path: path.into(),
            symbol: path.into(),
            address,
            bytes: 0x100,
        };
        let missing = |reason: &str, help: &str| {
            Err(Unavailable {
                reason: reason.into(),
                help: help.into(),
            })
        };
        use Register::{Ax, Cx, Di, Dx, Si};
        Self {
            types: types.map(|(id, of)| (id, Rc::new(of))).collect(),
            functions: vec![
                function("kernel::fs::vfs_write", WRITE),
                function("kernel::fs::vfs_read", READ),
                function("kernel::fs::vfs_open", OPEN),
                function("kernel::syscall::sys_open", SYS_OPEN),
            ],
            variables: BTreeMap::from([
                ((WRITE, "task"), Ok(in_register(TASK_REF, 8, Di))),
                ((WRITE, "file"), Ok(in_register(FILE_REF, 8, Di))),
                ((WRITE, "buffer"), Ok(in_two(BYTES, Si, Dx))),
                ((WRITE, "words"), Ok(in_two(WORDS, Si, Dx))),
                ((WRITE, "count"), Ok(in_register(U32, 4, Cx))),
                ((WRITE, "delta"), Ok(in_register(I32, 4, Cx))),
                ((WRITE, "shape"), Ok(in_two(SHAPE, Si, Dx))),
                ((WRITE, "inode"), Ok(in_register(OPTION_REF, 8, Di))),
                (
                    (WRITE, "gone"),
                    missing("`gone` is optimised out here", "it is there at line 12"),
                ),
                (
                    (WRITE, "partial"),
                    Ok(in_pieces(
                        FILE,
                        &[
                            (8, Some(Di)),
                            (8, None),
                            (1, Some(Si)),
                            (15, None),
                            (8, Some(Dx)),
                        ],
                    )),
                ),
                (
                    // Only the gap between two fields is known.
                    (WRITE, "lost"),
                    Ok(in_pieces(FILE, &[(18, None), (6, Some(Di)), (16, None)])),
                ),
                (
                    (WRITE, "triple"),
                    Ok(in_pieces(
                        TRIPLE,
                        &[(4, Some(Si)), (4, None), (4, Some(Dx))],
                    )),
                ),
                (
                    // Without its capacity.
                    (WRITE, "string"),
                    Ok(in_pieces(
                        STRING,
                        &[(8, None), (8, Some(Si)), (8, Some(Dx))],
                    )),
                ),
                (
                    (WRITE, "endless"),
                    Ok(in_pieces(
                        STRING,
                        &[(8, Some(Di)), (8, Some(Si)), (8, None)],
                    )),
                ),
                ((READ, "count"), Ok(in_register(U32, 4, Dx))),
                ((WRITE + 0x10, "left"), Ok(in_register(U32, 4, Si))),
                ((READ + 0x10, "left"), Ok(in_register(U32, 4, Si))),
                ((OPEN, "path"), Ok(in_two(STR, Di, Si))),
                ((OPEN, "tall"), Ok(behind(TypeId(TALL), 192, Di))),
                ((OPEN, "narrow"), Ok(behind(TypeId(NARROW), 56, Di))),
                ((OPEN, "triple"), Ok(behind(TRIPLE, 12, Di))),
                ((OPEN, "block"), Ok(behind(BLOCK, 256, Di))),
                (
                    // A constant with a bit above its four bytes, which does not count.
                    (OPEN, "constant"),
                    Ok(Variable {
                        type_id: U32,
                        pieces: vec![Piece {
                            bytes: 4,
                            source: Source::Value(Expression::Constant(1 << 32)),
                        }],
                    }),
                ),
                (
                    // A number of which two bytes are in a register.
                    (OPEN, "split"),
                    Ok(Variable {
                        type_id: USIZE,
                        pieces: [behind(U8, 6, Di), in_register(U8, 2, Si)]
                            .into_iter()
                            .flat_map(|part| part.pieces)
                            .collect(),
                    }),
                ),
                ((OPEN, "parts"), Ok(in_two(NAMES, Di, Si))),
                (
                    // What a register held at the entry.
                    (OPEN, "first"),
                    Ok(Variable {
                        type_id: USIZE,
                        pieces: vec![Piece {
                            bytes: 8,
                            source: Source::Value(Expression::AtEntry(Di)),
                        }],
                    }),
                ),
            ]),
            returns: BTreeMap::from([
                (WRITE, in_two(RESULT, Ax, Dx)),
                (READ, in_register(I64, 8, Ax)),
                (OPEN, in_register(OPTION_REF, 8, Ax)),
                (SYS_OPEN, in_register(I64, 8, Ax)),
            ]),
        }
    }

    /// An enum whose variants `V0`, `V1` and so on have these tags, in so many bytes at an offset.
    /// 24 bytes from the tag on belong to it.
    pub(super) fn put_enum_with_tags(
        &mut self,
        id: TypeId,
        (offset, bytes): (u64, u8),
        tags: impl IntoIterator<Item = u128>,
    ) {
        let variants = tags.into_iter().enumerate().map(|(number, tag)| Variant {
            name: format!("V{number}"),
            tag: Some(tag),
            fields: Vec::new(),
        });
        let of = Enum {
            name: "Tagged".into(),
            bytes: offset + 24,
            tag: Some(Tag {
                offset,
                bytes,
                signed: false,
            }),
            variants: variants.collect(),
            origin: Origin::Source,
        };
        self.types.insert(id, Rc::new(Type::Enum(of)));
    }
}

/// `*` and `?`, of the last segments.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skip| fits(rest, &name[skip..])),
        ([b'?', rest @ ..], [_, name @ ..]) => fits(rest, name),
        ([a, rest @ ..], [b, name @ ..]) => a == b && fits(rest, name),
        _ => false,
    }
}

impl Kernel for Fake {
    fn functions(&self, pattern: &str) -> Vec<Function> {
        let is = |function: &&Function| {
            let last = function.path.rsplit("::").next().unwrap();
            fits(pattern.as_bytes(), last.as_bytes())
                || fits(pattern.as_bytes(), function.path.as_bytes())
        };
        self.functions.iter().filter(is).cloned().collect()
    }

    fn inlined(&self, pattern: &str) -> Vec<u64> {
        match pattern {
            "tiny" => vec![WRITE + 0x10, READ + 0x10],
            _ => Vec::new(),
        }
    }

    fn line(&self, file: &str, line: u32) -> Result<Vec<u64>, Unavailable> {
        match (file, line) {
            ("fs.rs", 12) => Ok(vec![WRITE + 0x20]),
            _ => Err(Unavailable {
                reason: format!("line {line} of {file} has no code"),
                help: "line 12 has".into(),
            }),
        }
    }

    /// Each function but `vfs_read` has an instruction of two bytes at 2, and others of one byte.
    fn instruction(&self, function: &Function, offset: u64) -> Result<(), Unavailable> {
        match offset {
            3 if function.address != READ => Err(Unavailable {
                reason: format!("no instruction of `{}` begins at `+3`", function.path),
                help: "instructions begin at `+2` and at `+4`".into(),
            }),
            _ => Ok(()),
        }
    }

    fn variables(&self, place: ProbePlace) -> Vec<String> {
        let names = self.variables.keys();
        let names = names.filter(|(address, _)| *address == place.address);
        names.map(|(_, name)| (*name).into()).collect()
    }

    fn variable(&self, place: ProbePlace, name: &str) -> Result<Variable, Unavailable> {
        assert_eq!(place.moment, Moment::At);
        let mut known = self.variables.iter();
        match known.find(|((at, known), _)| *at == place.address && *known == name) {
            Some((_, variable)) => variable.clone(),
            None => Err(Unavailable {
                reason: format!("there is no `{name}` here"),
                help: String::new(),
            }),
        }
    }

    /// `left` is an argument of the copies of `tiny`, and a variable of what is around them.
    fn argument(
        &self,
        place: ProbePlace,
        copy: Option<&str>,
        name: &str,
    ) -> Result<Variable, Unavailable> {
        match (copy, name) {
            (None, "left") => Err(Unavailable {
                reason: "there is no argument `left` here".into(),
                help: "a variable is read by its name alone: left".into(),
            }),
            _ => self.variable(place, name),
        }
    }

    fn returned(&self, function: u64) -> Result<Variable, Unavailable> {
        self.returns.get(&function).cloned().ok_or(Unavailable {
            reason: "the result has no type".into(),
            help: String::new(),
        })
    }

    fn describe(&self, id: TypeId) -> Rc<Type> {
        self.types[&id].clone()
    }

    fn type_named(&self, name: &str) -> Result<TypeId, Vec<String>> {
        match name {
            "File" => Ok(FILE),
            "Inode" => Err(vec![
                "kernel::fs::Inode".into(),
                "kernel::fat::Inode".into(),
            ]),
            _ => Err(Vec::new()),
        }
    }

    fn global(&self, path: &str) -> Result<Variable, Unavailable> {
        match path {
            "kernel::TICKS" => Ok(Variable {
                type_id: USIZE,
                pieces: vec![Piece {
                    bytes: 8,
                    source: Source::Memory(Expression::Constant(0xffff_8000_0010_0000)),
                }],
            }),
            _ => Err(Unavailable {
                reason: format!("nothing is called `{path}`"),
                help: String::new(),
            }),
        }
    }

    fn nearest(&self, name: &str) -> Vec<String> {
        match name {
            "vfs_wriet" => vec!["vfs_write".into()],
            _ => Vec::new(),
        }
    }

    /// One program, which has what the kernel has, but in its own memory.
    fn program(&self, path: &str) -> Option<&dyn Kernel> {
        (path == "/bin/cat").then_some(self)
    }
}

impl Symbolize for Fake {
    fn symbol(&self, address: u64) -> Option<Symbol> {
        let holds = |function: &&Function| {
            (function.address..function.address + function.bytes).contains(&address)
        };
        let function = self.functions.iter().find(holds)?;
        Some(Symbol {
            name: function.path.rsplit("::").next()?.into(),
            offset: address - function.address,
        })
    }

    fn user_symbol(&self, program: &str, address: u64) -> Option<Symbol> {
        self.user_frame(program, address)
    }

    fn user_frame(&self, program: &str, address: u64) -> Option<Symbol> {
        (program == "cat" && address >= 0x40_0100).then(|| Symbol {
            name: "cat::main".into(),
            offset: address - 0x40_0100,
        })
    }
}

/// The script of a text.
pub(super) fn compiled(text: &str) -> Compiled {
    match compiled_with(text, &Fake::new(), &Options::default()) {
        Ok(compiled) => compiled,
        Err(errors) => panic!("{errors}"),
    }
}

/// The script of a text, or its messages as a terminal shows them.
pub(super) fn compiled_with(
    text: &str,
    kernel: &Fake,
    options: &Options,
) -> Result<Compiled, String> {
    let shown = |errors: Vec<trace_language::Diagnostic>| {
        let errors = errors.iter().map(|error| error.show(text).to_string());
        errors.collect::<Vec<_>>().join("\n")
    };
    let tree = parse(text).map_err(shown)?;
    compile(&tree, kernel, options).map_err(shown)
}

/// The first line of the messages for a text, without the word `error`. A text that compiles has
/// none, and says so.
pub(super) fn refusal(text: &str) -> String {
    let message = match compiled_with(text, &Fake::new(), &Options::default()) {
        Ok(_) => format!("{text} compiles"),
        Err(message) => message,
    };
    let line = message.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").into()
}
