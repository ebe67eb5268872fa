//! Memory of the program in ring 3: numbers, bytes and texts, up to the byte that ends them.

use bpf::context::Register::{Di, Dx, Si};

use super::{
    values::{INODE_AT, NAME_AT, with_file},
    world::{Hit, World},
};

/// Addresses of a program.
const BUFFER_AT: u64 = 0x40_1000;
const RECORD_AT: u64 = 0x40_2000;

/// A program with a text, of which nothing follows, and a `File` whose inode is there, too.
fn with_program(text: &str, content: &[u8]) -> World {
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
