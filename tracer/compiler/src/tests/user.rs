//! Memory of the program in ring 3: numbers, bytes and texts, up to the byte that ends them.
//!
//! The made-up kernel has one program, `/bin/cat`, with the functions that the kernel has. Of other
//! programs nothing is known but what the text says.

use bpf::context::Register::{Di, Dx, Si};
use trace_interface::script::Attachment;

use super::{
    fake::compiled,
    values::{INODE_AT, NAME_AT, with_file},
    world::{Hit, World},
};

/// Addresses of a program.
const BUFFER_AT: u64 = 0x40_1000;
pub(super) const RECORD_AT: u64 = 0x40_2000;

/// A program with a text, of which nothing follows, and a `File` whose inode is there, too.
pub(super) fn with_program(text: &str, content: &[u8]) -> World {
    let mut world = World::new(text);
    world.user.push((BUFFER_AT, content.to_vec()));
    let mut file = (RECORD_AT + 64).to_le_bytes().to_vec();
    file.extend((-7_i64).to_le_bytes());
    file.resize(64, 0);
    file.extend(42_u64.to_le_bytes());
    file.extend(9_u64.to_le_bytes());
    world.user.push((RECORD_AT, file));
    world
}

#[test]
fn numbers_in_the_memory_of_a_program_are_read() {
    let mut world = with_program(
        "kprobe:vfs_write { $p = (uint32*)uptr(arg1); $file = (&File)uptr(arg0); \
         printf(\"%d %x %x %x\\n\", *(int8*)uptr(arg1), *$p, $p[1], *uptr(arg1)); \
         printf(\"%d %d %d\\n\", $file.pos, $file.inode.number, (*$file.inode).links); \
         @[*(uint16*)uptr(arg1 + 2)] = count(); @kept = $p; print(*@kept); }",
        &[0xfe, 1, 2, 3, 4, 5, 6, 7],
    );
    world.hit(&Hit {
        registers: vec![(Di, RECORD_AT), (Si, BUFFER_AT)],
        ..Hit::default()
    });
    assert_eq!(
        (&*world.out, world.faults),
        ("-2 30201fe 7060504 7060504030201fe\n-7 42 9\n50463230\n", 0)
    );
    world.out.clear();
    assert!(world.maps().starts_with("@[770]: 1\n"));
}

/// Where a value is in registers, what it leads to is the program's, and so is a plain number.
#[test]
fn values_of_a_program_are_in_its_memory() {
    let mut world = with_program(
        "uprobe:/bin/cat:vfs_write { \
         printf(\"%s %d %d\\n\", func, args.file.pos, args.file.inode.number); \
         print(args.buffer); print(*(uint16*)arg1); print(((&File)arg0).pos); print(buf(arg1, 2)); \
         print(*kptr((uint16*)arg1)); }",
        &[1, 2, 3, 4, 5],
    );
    world.hit_in_program(
        "/bin/cat",
        &Hit {
            registers: vec![(Di, RECORD_AT), (Si, BUFFER_AT), (Dx, 5)],
            ..Hit::default()
        },
    );
    let expected = "kernel::fs::vfs_write -7 42\n[1, 2, 3, 4, 5]\n513\n-7\n\\x01\\x02\n\
                    <unreadable>\n";
    assert_eq!(world.out, expected);
}

/// A part of a value may be in memory while the rest is in a register.
#[test]
fn pieces_in_memory_are_the_programs() {
    let mut world = with_program(
        "uprobe:/bin/cat:vfs_open { print(split); }",
        &[1, 2, 3, 4, 5, 6, 7, 8],
    );
    world.hit_in_program(
        "/bin/cat",
        &Hit {
            registers: vec![(Di, BUFFER_AT), (Si, 0x0807)],
            ..Hit::default()
        },
    );
    assert_eq!(world.out, format!("{}\n", 0x0807_0605_0403_0201_u64));
}

#[test]
fn at_the_entry_a_register_holds_what_it_held_there() {
    let hit = || Hit {
        registers: vec![(Di, 77)],
        address: super::fake::OPEN,
        ..Hit::default()
    };
    let mut world = World::new("uprobe:/bin/cat:vfs_open { print(first); }");
    world.hit_in_program("/bin/cat", &hit());
    assert_eq!(world.out, "77\n");
    let mut world = World::new("kprobe:vfs_open { print(first); }");
    world.hit(&hit());
    assert_eq!(world.out, "77\n");
}

/// A pattern is a probe for each function that it matches, with a name of its own.
#[test]
fn patterns_match_functions_of_a_program() {
    let compiled = compiled("uprobe:/bin/cat:vfs_* { @[probe] = count(); }");
    let functions: Vec<_> = compiled
        .script
        .attachments
        .iter()
        .map(|attachment| match attachment {
            Attachment::User { path, function, .. } => (&**path, function.as_deref()),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        "kernel::fs::vfs_write",
        "kernel::fs::vfs_read",
        "kernel::fs::vfs_open",
    ];
    let expected = expected.map(|name| ("/bin/cat", Some(name)));
    assert_eq!(functions, expected);
}

/// Where the program is not known, the kernel looks the name up, and `func` is the name too.
#[test]
fn a_function_of_a_program_that_is_not_known_has_its_name() {
    let mut world = World::new(
        "uprobe:/bin/other:main { print(func); print(probe); } \
         uprobe:/bin/other:main+4 { print(probe); }",
    );
    let Attachment::User { path, function, .. } = &world.script.attachments[0] else {
        panic!("{:?}", world.script.attachments);
    };
    assert_eq!((&**path, function.as_deref()), ("/bin/other", Some("main")));
    world.hit_in_program("/bin/other", &Hit::default());
    assert_eq!(
        world.out,
        "main\nuprobe:/bin/other:main\nuprobe:/bin/other:main+0x4\n"
    );
}

#[test]
fn memory_of_the_kernel_is_not_that_of_a_program() {
    let mut world = with_file(
        "kprobe:vfs_write { print(*(uint64*)uptr(arg0)); print(*kptr((uint64*)uptr(arg0))); \
         print(*(uint64*)arg1); }",
        "",
    );
    world.user.push((BUFFER_AT, vec![1; 8]));
    world.hit(&Hit {
        registers: vec![(Di, INODE_AT), (Si, BUFFER_AT)],
        ..Hit::default()
    });
    // This machine counts loads only, and memory of programs is read by calls.
    assert_eq!(
        (&*world.out, world.faults),
        ("<unreadable>\n42\n<unreadable>\n", 1)
    );
}

#[test]
fn bytes_of_a_program_are_read_to_the_last_one_and_no_further() {
    let content = b"\x01bcdefghijklmnopqrstuvwxyz";
    for length in 0..=content.len() {
        let mut world = with_program(
            "kprobe:vfs_write { print(buf(uptr(arg1), arg2)); }",
            &content[..length],
        );
        world.hit(&Hit {
            registers: vec![(Si, BUFFER_AT), (Dx, length as u64)],
            ..Hit::default()
        });
        let shown = String::from_utf8_lossy(&content[..length]).replace('\x01', "\\x01");
        assert_eq!(
            (&*world.out, world.faults),
            (&*format!("{shown}\n"), 0),
            "{length}"
        );
    }
}

#[test]
fn texts_end_at_a_length_that_the_hit_tells() {
    let text = "kprobe:vfs_write { print(str(arg1, arg2)); @[str(arg1, arg2)] = count(); \
                if (str(arg1, arg2) == \"abc\") { print(\"equal\"); } }";
    let letters = b"abcdefghijklmnopqrstuvwxyz".repeat(8);
    let ended = b"abcdefghij\0more";
    for is_user in [true, false] {
        for (content, limit, shown) in [
            (&letters[..26], 0, ""),
            // Nothing past the length is read.
            (&letters[..3], 3, "abc"),
            (&letters[..8], 8, "abcdefgh"),
            (&letters[..19], 19, "abcdefghijklmnopqrs"),
            (&ended[..], 12, "abcdefghij"),
            (
                &letters[..],
                205,
                &"abcdefghijklmnopqrstuvwxyz".repeat(8)[..199],
            ),
            (
                &letters[..],
                u64::MAX,
                &"abcdefghijklmnopqrstuvwxyz".repeat(8)[..199],
            ),
        ] {
            let mut world = World::new(text);
            let address = match is_user {
                true => BUFFER_AT,
                false => NAME_AT,
            };
            match is_user {
                true => world.user.push((address, content.to_vec())),
                false => world.memory.push((address, content.to_vec())),
            }
            world.hit(&Hit {
                registers: vec![(Si, address), (Dx, limit)],
                ..Hit::default()
            });
            let equal = if limit == 3 { "equal\n" } else { "" };
            assert_eq!(
                (&*world.out, world.faults),
                (&*format!("{shown}\n{equal}"), 0),
                "{is_user} {limit}"
            );
        }
    }
}
