//! Values of the source: arguments, results, fields, variants.
//!
//! Memory and registers are set by hand, a program reads them at a hit, and the text that comes out
//! is compared.

use bpf::context::Register::{Ax, Cx, Di, Dx, Si};

use super::{
    fake::{Fake, LEVELS, OPEN, READ, SYS_OPEN, TAGGED, behind, compiled_with},
    world::{Hit, World},
};
use crate::{EventTable, Options};

const FILE_AT: u64 = 0xffff_8000_0020_0000;
pub(super) const INODE_AT: u64 = 0xffff_8000_0020_1000;
pub(super) const NAME_AT: u64 = 0xffff_8000_0020_2000;

/// Memory with a `File` whose name has so many letters.
pub(super) fn with_file(text: &str, name: &str) -> World {
    let mut world = World::new(text);
    let mut file = Vec::new();
    file.extend(INODE_AT.to_le_bytes());
    file.extend((-5_i64).to_le_bytes());
    file.extend([1, 1, 0, 0, 0, 0, 0, 0]);
    file.extend(NAME_AT.to_le_bytes());
    file.extend((name.len() as u64).to_le_bytes());
    world.memory.push((FILE_AT, file));
    let mut inode = 42_u64.to_le_bytes().to_vec();
    inode.extend([3, 0, 0, 0, 0, 0, 0, 0]);
    world.memory.push((INODE_AT, inode));
    // Nothing is after the name: not a byte too many is read.
    world.memory.push((NAME_AT, name.as_bytes().to_vec()));
    world
}

pub(super) fn write_hit() -> Hit {
    Hit {
        registers: vec![(Di, FILE_AT), (Si, NAME_AT), (Dx, 5), (Cx, 0xffff_fffe)],
        ..Hit::default()
    }
}

#[test]
fn fields_are_followed_through_references() {
    let mut world = with_file(
        "kprobe:vfs_write { printf(\"%d %d %d %s %s\\n\", args.file.inode.number, \
         args.file.pos, args.file.inode.links, args.file.readable, args.file.mode); }",
        "",
    );
    world.hit(&write_hit());
    assert_eq!((&*world.out, world.faults), ("42 -5 3 true Write\n", 0));
}

#[test]
fn a_reference_that_leads_nowhere_is_told_and_counted() {
    let mut world = World::new("kprobe:vfs_write { print(args.file.inode.number); }");
    world.hit(&write_hit());
    assert_eq!((&*world.out, world.faults), ("<unreadable>\n", 2));
}

#[test]
fn memory_that_cannot_be_read_is_told_wherever_it_is_and_is_zero_as_a_number() {
    let mut world = World::new(
        "kprobe:vfs_write { print(args.file); print(*args.file); print(args.file.name); \
         print(args.buffer); print(args.words); print(str(arg0)); print(str(arg0, 5)); \
         print(str(arg0, arg2)); print(buf(arg0, 4)); print(args.file.mode); \
         print(args.task.name); print(args.task.list); print(args.task.inode.number); \
         print(args.buffer[1]); print(args.task.list[0].pos); print(*(uint32*)arg0); \
         printf(\"%d|%x|%5s|%-13r|\\n\", args.file.pos, args.file.pos, args.file.readable, \
         args.file.pos); print(args.file.pos + 1); if (args.file.pos == 0) { print(0); } \
         @[str(arg0)] = count(); @name[args.file.name] = count(); @words = args.words; }",
    );
    world.hit(&write_hit());
    assert_eq!(
        world.out,
        format!(
            "{}<unreadable>\n-\n<unreadable>\n\
             <unreadable>|<unreadable>|<unreadable>|<unreadable> |\n1\n0\n",
            "<unreadable>\n".repeat(13)
        )
    );
    world.out.clear();
    assert_eq!(
        world.maps(),
        "@[<unreadable>]: 1\n\n@name[<unreadable>]: 1\n\n@words: <unreadable>\n"
    );
}

#[test]
fn a_value_of_zeros_and_an_empty_one_are_no_unreadable_ones() {
    let mut world = World::new(
        "kprobe:vfs_write { print(*args.file); print(args.buffer); print(str(arg1)); \
         print(str(arg0, arg2)); print(args.file.pos); }",
    );
    world.memory.push((FILE_AT, vec![0; 40]));
    world.memory.push((INODE_AT, vec![0; 16]));
    world.memory.push((NAME_AT, vec![0]));
    world.hit(&Hit {
        registers: vec![(Di, FILE_AT), (Si, NAME_AT), (Dx, 0)],
        ..Hit::default()
    });
    assert_eq!(
        world.out,
        "File { inode: <unreadable>, pos: 0, readable: false, mode: Read, name: \"\" }\n[]\n\n\n0\n"
    );
}

#[test]
fn texts_of_every_length_are_whole_or_marked() {
    let long = "abcdefghijklmnopqrstuvwxyz".repeat(8);
    for length in (0..20).chain([63, 64, 65, 199, 200, 201, 208]) {
        let name = &long[..length];
        let mut world = with_file(
            "kprobe:vfs_write { @[args.file.name] = count(); print(args.file.name); }",
            name,
        );
        world.hit(&write_hit());
        let shown = match length {
            201.. => format!("{}..", &long[..200]),
            _ => name.into(),
        };
        assert_eq!(world.out, format!("{shown}\n"), "{length}");
        assert_eq!(world.faults, 0, "{length}");
    }
}

#[test]
fn texts_of_a_length_that_the_program_sets_are_whole_words() {
    let long = "abcdefghijklmnopqrstuvwxyz".repeat(8);
    for (length, cut) in [(98, false), (104, false), (105, true)] {
        let mut world = with_file(
            "config = { max_strlen = 100 } kprobe:vfs_write { print(args.file.name); \
             print(str(arg1, arg2)); }",
            &long[..length],
        );
        world.hit(&Hit {
            registers: vec![(Di, FILE_AT), (Si, NAME_AT), (Dx, length as u64)],
            ..Hit::default()
        });
        let shown = format!(
            "{}{}",
            &long[..length.min(104)],
            if cut { ".." } else { "" }
        );
        assert_eq!(
            world.out,
            format!("{shown}\n{}\n", &long[..length.min(103)])
        );
    }
}

#[test]
fn texts_are_compared() {
    for (name, same) in [("hello", true), ("hell", false), ("hello!", false)] {
        let mut world = with_file(
            "kprobe:vfs_write /args.file.name == \"hello\"/ { print(1); } \
             kprobe:vfs_write /comm == \"cat\" && comm != \"dog\"/ { print(2); }",
            name,
        );
        world.hit(&write_hit());
        assert_eq!(world.out, if same { "1\n2\n" } else { "2\n" });
    }
}

#[test]
fn slices_are_values_with_a_length_and_elements() {
    let mut world = with_file(
        "kprobe:vfs_write { printf(\"%r %d %d %s\\n\", args.buffer, args.buffer.len, \
         args.buffer[1], args.words[4]); print(args.words); }",
        "hel\x01o, this is more than the words are",
    );
    world.hit(&write_hit());
    let words: Vec<u32> = b"hel\x01o, this is more "[..20]
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(*word.first_chunk().unwrap()))
        .collect();
    assert_eq!(
        world.out,
        format!("[104, 101, 108, 1, 111] 5 101 {}\n{words:?}\n", words[4])
    );
}

#[test]
fn an_element_behind_the_end_is_not_there() {
    let mut world = with_file(
        "kprobe:vfs_write { printf(\"%s\\n\", args.buffer[5]); @ = sum(args.buffer[5]); }",
        "hello!",
    );
    world.hit(&write_hit());
    assert_eq!(world.out, "-\n");
    world.out.clear();
    assert_eq!(world.maps(), "");
}

#[test]
fn results_are_decoded() {
    let text = "kretprobe:vfs_write { print(retval); @all = hist(retval); @ok = sum(retval.Ok); \
                @err[retval.Err] = count(); printf(\"%d %d\\n\", retval, retval.Ok); }";
    let mut world = World::new(text);
    let mut answer = |ax: u64, dx: u64| {
        let hit = Hit {
            registers: vec![(Ax, ax), (Dx, dx)],
            ..Hit::default()
        };
        world.call(&Hit::default(), &hit);
        core::mem::take(&mut world.out)
    };
    assert_eq!(answer(0, 100), "Ok(100)\n100 100\n");
    assert_eq!(answer(1 | 2 << 8, 77), "Err(ENOENT)\n-2 -\n");
    let maps = world.maps();
    assert!(maps.contains("@err[ENOENT]: 1\n\n"), "{maps}");
    assert!(maps.contains("@ok: 100\n"), "{maps}");
    assert!(maps.contains("(..., 0)               1"), "{maps}");
}

#[test]
fn conditions_ask_for_a_variant() {
    let mut world = World::new(
        "kretprobe:vfs_write /retval.Err/ { print(\"err\"); } \
         kretprobe:vfs_write /retval.Ok > 5/ { print(\"large\"); } \
         kretprobe:vfs_write { match retval { Ok($n) => { print($n); } Err(_) => { print(0); } } }",
    );
    for (ax, dx) in [(0, 100), (1 | 9 << 8, 100), (0, 0)] {
        let hit = Hit {
            registers: vec![(Ax, ax), (Dx, dx)],
            ..Hit::default()
        };
        world.call(&Hit::default(), &hit);
    }
    assert_eq!(world.out, "large\n100\nerr\n0\n0\n");
}

#[test]
fn options_in_a_niche_are_decoded() {
    let mut world = World::new(
        "kretprobe:vfs_open { printf(\"%s %d\\n\", retval.Some ? \"some\" : \"none\", \
         retval.Some.number); print(retval); }",
    );
    let mut inode = 42_u64.to_le_bytes().to_vec();
    inode.extend([0; 8]);
    world.memory.push((INODE_AT, inode));
    for ax in [0, INODE_AT] {
        let at = |registers| Hit {
            registers,
            address: OPEN,
            ..Hit::default()
        };
        world.call(&at(Vec::new()), &at(vec![(Ax, ax)]));
    }
    assert_eq!(
        world.out,
        "none -\nNone\nsome 42\nSome(Inode { number: 42, links: 0 })\n"
    );
}

#[test]
fn enums_with_fields_are_keys_and_values() {
    let mut world = World::new(
        "kprobe:vfs_write { @[args.shape] = count(); \
         match args.shape { Circle($r) => { print($r); } Box { height: $h } => { print($h); } \
         _ => { print(\"other\"); } } }",
    );
    // The bytes that are no field of the variant differ, and are not seen.
    for (si, dx) in [
        (0, 1),
        (0xffff_0000_0000, 2),
        (1 | 7 << 32, 3),
        (1 | 7 << 32, 4),
    ] {
        world.hit(&Hit {
            registers: vec![(Si, si), (Dx, dx)],
            ..Hit::default()
        });
    }
    world.hit(&Hit {
        registers: vec![(Si, 2 | 5 << 32), (Dx, -1_i64 as u64)],
        ..Hit::default()
    });
    assert_eq!(world.out, "other\nother\n7\n7\n-1\n");
    world.out.clear();
    assert_eq!(
        world.maps(),
        "@[Box { width: 5, height: -1 }]: 1\n@[Circle(7)]: 2\n@[Point]: 2\n\n"
    );
}

/// Neighbours of the tag have all bits set, and no variant's tag is that.
#[test]
fn a_variant_is_known_by_its_tag_wherever_it_is_and_however_long() {
    for (offset, bytes) in [0_u64, 8, 16, 24]
        .into_iter()
        .flat_map(|offset| [1_u8, 2, 4, 8, 16].map(|bytes| (offset, bytes)))
    {
        let tags = [1, 2, 1 | 1 << (8 * u32::from(bytes) - 1)];
        let mut kernel = Fake::new();
        kernel.put_enum_with_tags(TAGGED, (offset, bytes), tags);
        let variable = behind(TAGGED, offset as u32 + 24, Di);
        kernel.variables.insert((OPEN, "tagged"), Ok(variable));
        let text = "kprobe:vfs_open { match args.tagged { V0 => { print(0); } \
                    V1 => { print(1); } V2 => { print(2); } _ => { print(3); } } }";
        let compiled = compiled_with(text, &kernel, &Options::default()).unwrap();
        let mut world = World::of(compiled);
        for tag in [tags[0], tags[1], tags[2], 5] {
            let mut memory = vec![0xff; offset as usize];
            memory.extend(&tag.to_le_bytes()[..bytes.into()]);
            memory.resize(offset as usize + 24, 0xff);
            world.memory.retain(|(address, _)| *address != FILE_AT);
            world.memory.push((FILE_AT, memory));
            world.hit(&Hit {
                address: OPEN,
                ..write_hit()
            });
        }
        assert_eq!(world.out, "0\n1\n2\n3\n", "{bytes} bytes at {offset}");
    }
}

/// Memory that was given back may have any bytes.
#[test]
fn an_enum_with_the_tag_of_no_variant_is_invalid() {
    let text = "kprobe:vfs_write { print(args.shape); @[args.shape] = count(); }";
    let mut world = World::new(text);
    world.hit(&Hit {
        registers: vec![(Si, 9 | 5 << 32), (Dx, 1)],
        ..Hit::default()
    });
    assert_eq!(world.out, "<invalid>\n");
    world.out.clear();
    assert_eq!(world.maps(), "@[<invalid>]: 1\n\n");
}

/// The same of what is a single number.
#[test]
fn bits_that_no_value_has_are_invalid() {
    let mut world = with_file(
        "kprobe:vfs_write { print(args.file.readable); print(args.file.mode); }",
        "",
    );
    world.memory[0].1[16..18].copy_from_slice(&[2, 9]);
    world.hit(&write_hit());
    assert_eq!(world.out, "<invalid>\n<invalid>\n");
}

#[test]
fn arguments_are_seen_at_the_return() {
    let mut world = World::new(
        "kretprobe:vfs_write { printf(\"%d %d %r %d %d\\n\", args.count, args.delta, args.buffer, \
         arg2, retval.Ok); }",
    );
    world.memory.push((NAME_AT, b"hello".to_vec()));
    let on_return = Hit {
        registers: vec![(Ax, 0), (Dx, 9)],
        ..Hit::default()
    };
    world.call(&write_hit(), &on_return);
    assert_eq!(world.out, "4294967294 -2 [104, 101, 108, 108, 111] 5 9\n");
}

#[test]
fn a_session_keeps_variables_and_follows_only_calls_that_it_wants() {
    let mut world = World::new(
        "session:vfs_write /args.count > 1/ { $at = nsecs; $n = comm; $f = args.file; } \
         return { printf(\"%d %s %d %d\\n\", nsecs - $at, $n, $f.inode.number, args.count); }",
    );
    let mut inode = 42_u64.to_le_bytes().to_vec();
    inode.extend([0; 8]);
    world.memory.push((INODE_AT, inode));
    world
        .memory
        .push((FILE_AT, INODE_AT.to_le_bytes().to_vec()));
    let at = |count, tsc| Hit {
        registers: vec![(Di, FILE_AT), (Cx, count)],
        tsc,
        ..Hit::default()
    };
    world.call(&at(1, 1000), &at(0, 2000));
    world.call(&at(5, 1000), &at(0, 2000));
    assert_eq!(world.out, "2000 cat 42 5\n");
}

#[test]
fn values_in_several_functions_have_a_program_for_each_place() {
    let mut world = World::new("kprobe:vfs_write,kprobe:vfs_read { @[func] = sum(args.count); }");
    assert_eq!(world.script.programs.len(), 2);
    world.hit(&Hit {
        registers: vec![(Cx, 3)],
        ..Hit::default()
    });
    world.hit(&Hit {
        registers: vec![(Dx, 4)],
        address: READ,
        ..Hit::default()
    });
    assert_eq!(world.maps(), "@[vfs_write]: 3\n@[vfs_read]: 4\n\n");
    let world = World::new("kprobe:vfs_write,kprobe:vfs_read { @[func] = sum(arg1); }");
    assert_eq!(world.script.programs.len(), 1);
}

#[test]
fn static_variables_casts_and_texts_of_tasks() {
    let mut world = World::new(
        "kprobe:vfs_write { print(kernel::TICKS); print(((&File)arg0).inode.number); \
         print(*(&u32)arg0); print(str(arg1)); print(buf(arg0, 4)); print(ksym(arg2)); \
         print(kaddr(\"vfs_read\") == arg2); print(reg(\"si\")); }",
    );
    world
        .memory
        .push((0xffff_8000_0010_0000, 99_u64.to_le_bytes().to_vec()));
    world
        .memory
        .push((FILE_AT, INODE_AT.to_le_bytes().to_vec()));
    let mut inode = 42_u64.to_le_bytes().to_vec();
    inode.extend([0; 8]);
    world.memory.push((INODE_AT, inode));
    world.user.push((0x4000, b"/etc/motd\0".to_vec()));
    world.hit(&Hit {
        registers: vec![(Di, FILE_AT), (Si, 0x4000), (Dx, READ)],
        ..Hit::default()
    });
    assert_eq!(
        world.out,
        format!(
            "99\n42\n{}\n/etc/motd\n\\x00\\x10 \\x00\nvfs_read\ntrue\n16384\n",
            INODE_AT as u32
        )
    );
}

#[test]
fn statements_choose_and_repeat() {
    let mut world = World::new(
        "kprobe:vfs_write { $s = 0; for ($i : 0..6) { if ($i == 1) { continue; } \
         if ($i == 4) { break; } $s += $i; } print($s); unroll (3) { $s++; } print($s); \
         if ($s > 100) { print(\"no\"); } else if (arg0 == 5) { $t = \"five\"; print($t); } \
         else { print(\"other\"); } print(arg0 == 5 ? \"yes\" : \"no\"); \
         @n[tid]++; @n[tid] += 5; @n[tid] -= 2; print(@n[tid]); print(@n[tid]++); \
         print(++@n[tid]); \
         if (arg0 == 6) { return; } print(\"end\"); }",
    );
    for value in [5, 6] {
        world.hit(&Hit {
            registers: vec![(Di, value)],
            ..Hit::default()
        });
    }
    assert_eq!(
        world.out,
        "5\n8\nfive\nyes\n4\n4\n6\nend\n5\n8\nother\nno\n10\n10\n12\n"
    );
}

#[test]
fn event_sources_have_fields_by_name() {
    let mut world = World::new(
        "tracepoint:syscalls:sys_enter_open { printf(\"%s %s %d %s\\n\", args.filename, \
         str(args.filename), args.flags, probe); } \
         tracepoint:syscalls:sys_exit_open { printf(\"%d %d\\n\", args.__syscall_nr, args.ret); }",
    );
    world.user.push((0x4000, b"/etc/motd\0".to_vec()));
    let entry = Hit {
        registers: vec![(Di, 0x4000), (Si, 0xffff_0000_0001)],
        address: SYS_OPEN,
        ..Hit::default()
    };
    let on_return = Hit {
        registers: vec![(Ax, -2_i64 as u64)],
        address: SYS_OPEN,
        ..Hit::default()
    };
    world.hit(&entry);
    world.call(&entry, &on_return);
    assert_eq!(
        world.out,
        "/etc/motd /etc/motd 1 tracepoint:syscalls:sys_enter_open\n2 -2\n"
    );
}

#[test]
fn types_of_the_library_are_shown_as_what_they_hold() {
    let mut world = World::new(
        "kprobe:vfs_write { print(args.task.name); print(args.task.inode.number); \
         print(*args.task); @[args.task.name] = max(args.task.pid); \
         if (args.task.name == \"sh\") { print(1); } }",
    );
    let mut task = 16_u64.to_le_bytes().to_vec();
    task.extend(NAME_AT.to_le_bytes());
    task.extend(2_u64.to_le_bytes());
    task.extend((INODE_AT - 16).to_le_bytes());
    task.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    task.extend([0; 24]);
    world.memory.push((FILE_AT, task));
    world.memory.push((NAME_AT, b"sh".to_vec()));
    let mut inode = 42_u64.to_le_bytes().to_vec();
    inode.extend([0; 8]);
    world.memory.push((INODE_AT, inode));
    world.hit(&write_hit());
    assert_eq!(
        world.out,
        "sh\n42\nTask { name: \"sh\", inode: Inode { number: 42, links: 0 }, pid: 7, \
         list: [] }\n1\n"
    );
    world.out.clear();
    assert_eq!(world.maps(), "@[sh]: 7\n\n");
}

#[test]
fn elements_of_a_vector_are_values_within_its_length() {
    let mut world = World::new(
        "kprobe:vfs_write { printf(\"%d %d %s %d\\n\", args.task.list.len, args.task.list[0].pos, \
         args.task.list[1].mode, args.task.list[arg1].pos); }",
    );
    let mut task = vec![0; 48];
    task.extend(NAME_AT.to_le_bytes());
    task.extend(2_u64.to_le_bytes());
    world.memory.push((FILE_AT, task));
    let mut files = vec![0; 80];
    files[8] = 7;
    files[48] = 9;
    files[40 + 17] = 1;
    world.memory.push((NAME_AT, files));
    for index in [1, 2] {
        world.hit(&Hit {
            registers: vec![(Di, FILE_AT), (Si, index)],
            ..Hit::default()
        });
    }
    assert_eq!(world.out, "2 7 Write 9\n2 7 Write -\n");
}

#[test]
fn truth_is_a_number_where_numbers_are() {
    let mut world = World::new(
        "kprobe:vfs_write { @a = arg0 > 1; @b = arg0 > 1; @b = 7; if (@a) { print(@a); } \
         print(@b + (arg0 > 1)); @[args.file.readable] = count(); }",
    );
    world.hit(&Hit {
        registers: vec![(Di, 2)],
        ..Hit::default()
    });
    assert_eq!(world.out, "@a: true\n8\n");
    world.out.clear();
    assert_eq!(world.maps(), "@[false]: 1\n\n@a: true\n@b: 7\n");
}

/// Pointers as `argv` has them, of the kernel or of a program: nothing after the null is read, and
/// an empty text is one.
#[test]
fn the_texts_of_an_array_of_pointers_are_joined() {
    const TEXTS: [&[u8]; 3] = [b"ls\0", b"\0", b"-l\0"];
    for (is_user, array_at) in [(false, FILE_AT), (true, 0x40_0000)] {
        let mut world = World::new("kprobe:vfs_write { join(arg0); join(arg0, \",\"); }");
        let memory = match is_user {
            true => &mut world.user,
            false => &mut world.memory,
        };
        let mut array = Vec::new();
        for (number, text) in (1..).zip(TEXTS) {
            let at = array_at + 0x1000 * number;
            array.extend(at.to_le_bytes());
            memory.push((at, text.to_vec()));
        }
        array.extend([0; 8]);
        memory.push((array_at, array));
        world.hit(&Hit {
            registers: vec![(Di, array_at)],
            ..write_hit()
        });
        assert_eq!(world.out, "ls  -l\nls,,-l\n");
        assert_eq!(world.faults, 0);
    }
    let mut world = World::new("kprobe:vfs_write { join(arg0); }");
    world.hit(&Hit {
        registers: vec![(Di, 0)],
        ..write_hit()
    });
    assert_eq!(world.out, "\n");
    // The sixteen first ones.
    let at = NAME_AT;
    world.memory.push((at, b"a\0".to_vec()));
    world.memory.push((FILE_AT, at.to_le_bytes().repeat(17)));
    world.out.clear();
    world.hit(&write_hit());
    assert_eq!(world.out, format!("{}\n", ["a"; 16].join(" ")));
}

/// The arguments of `execve` are such an array in the memory of the program. The made-up kernel has
/// no `sys_execve`, so another function stands for it.
#[test]
fn the_arguments_of_a_new_program_have_elements() {
    let lines = EventTable::default()
        .lines()
        .replace("sys_execve", "sys_open");
    let options = Options {
        events: std::rc::Rc::new(EventTable::parse(lines.lines()).unwrap()),
        ..Options::default()
    };
    let text = "tracepoint:syscalls:sys_enter_execve { $n = 1; print((str(args.argv[0]), \
                str(args.argv[$n]), args.envp[0], sizeof(*args.argv))); join(args.argv); }";
    let mut world = World::of(compiled_with(text, &Fake::new(), &options).unwrap());
    let (array, first, second) = (0x7000_u64, 0x8000_u64, 0x9000_u64);
    let words = [first, second, 0].map(u64::to_le_bytes);
    world.user.push((array, words.concat()));
    world.user.push((first, b"ls\0".to_vec()));
    world.user.push((second, b"-l\0".to_vec()));
    world.hit(&Hit {
        address: SYS_OPEN,
        registers: vec![(Si, array), (Dx, array + 16)],
        ..Hit::default()
    });
    assert_eq!((&*world.out, world.faults), ("(ls, -l, 0, 8)\nls -l\n", 0));
}

#[test]
fn the_texts_of_a_slice_are_joined() {
    let mut world = World::new("kprobe:vfs_open { join(args.parts, \"/\"); }");
    let mut slice = Vec::new();
    for (number, text) in (0..).zip(["usr", "bin"]) {
        let at = NAME_AT + 0x100 * number;
        slice.extend(at.to_le_bytes());
        slice.extend((text.len() as u64).to_le_bytes());
        world.memory.push((at, text.as_bytes().to_vec()));
    }
    world.memory.push((FILE_AT, slice));
    world.hit(&Hit {
        address: OPEN,
        registers: vec![(Di, FILE_AT), (Si, 2)],
        ..Hit::default()
    });
    assert_eq!(world.out, "usr/bin\n");
    let mut shown = World::new("kprobe:vfs_open { print(args.parts); }");
    shown.memory = world.memory.clone();
    shown.hit(&Hit {
        address: OPEN,
        registers: vec![(Di, FILE_AT), (Si, 2)],
        ..Hit::default()
    });
    assert_eq!(shown.out, "[\"usr\", \"bin\"]\n");
}

#[test]
fn a_text_of_a_slice_that_is_joined_has_at_most_64_bytes() {
    let long = "abcdefghijklmnopqrstuvwxyz".repeat(3);
    for length in [63, 64, 65] {
        let mut world = World::new("kprobe:vfs_open { join(args.parts); }");
        let text = &long[..length];
        let slice = [NAME_AT, length as u64].map(u64::to_le_bytes).concat();
        world.memory.push((NAME_AT, text.into()));
        world.memory.push((FILE_AT, slice));
        world.hit(&Hit {
            address: OPEN,
            registers: vec![(Di, FILE_AT), (Si, 1)],
            ..Hit::default()
        });
        let shown = match length {
            65.. => format!("{}..\n", &long[..64]),
            _ => format!("{text}\n"),
        };
        assert_eq!(world.out, shown, "{length}");
    }
}

#[test]
fn parts_that_are_missing_are_told_and_the_others_are_shown() {
    let mut world = with_file(
        "kprobe:vfs_write { print(args.partial); print(args.triple); print(args.string); \
         printf(\"%d %d\\n\", args.partial.readable, args.triple[2]); \
         @[args.partial] = count(); $kept = args.partial; print($kept); }",
        "hello",
    );
    let hit = Hit {
        registers: vec![(Di, FILE_AT), (Si, NAME_AT | 1), (Dx, 4)],
        ..Hit::default()
    };
    world.hit(&hit);
    // A key has the reference itself.
    let file = "File { inode: 0xffff800000200000, pos: <unavailable>, readable: true, \
                mode: <unavailable>, name: <unavailable> }";
    let followed = file.replace(
        "0xffff800000200000",
        "Inode { number: 18446603336223297536, links: 4294967291 }",
    );
    assert_eq!(
        world.out,
        format!("{followed}\n[2105345, <unavailable>, 4]\nello\n1 4\n{followed}\n")
    );
    world.out.clear();
    assert_eq!(world.maps(), format!("@[{file}]: 1\n\n"));
}

#[test]
fn a_value_of_which_nothing_is_there_is_refused() {
    for value in [
        "args.lost",
        "args.partial.pos",
        "args.partial.name",
        "args.endless",
        "args.triple[1]",
    ] {
        for text in [
            format!("kprobe:vfs_write {{ print({value}); }}"),
            format!("kprobe:vfs_write {{ @[{value}] = count(); }}"),
        ] {
            let refusal = compiled_with(&text, &Fake::new(), &Options::default()).err();
            let refusal = refusal.unwrap();
            assert!(
                refusal.contains("left this part of the value out"),
                "{refusal}"
            );
        }
    }
}

#[test]
fn values_of_the_source_have_a_length() {
    let mut world = with_file(
        "kprobe:vfs_write { printf(\"%d %d %d\\n\", len(args.buffer), len(args.file.name), \
         len(args.triple)); }",
        "hello!",
    );
    world.hit(&write_hit());
    assert_eq!(world.out, "5 6 3\n");
}

#[test]
fn texts_have_at_most_the_length_of_the_program_s_text() {
    for (length, shown) in [
        (1, "a"),
        (4, "abcd"),
        (7, "abcdefg"),
        (8, "abcdefgh"),
        (20, "abcdefghij"),
    ] {
        let text = format!(
            "kprobe:vfs_write {{ print(str(arg1, {length})); @[str(arg1, {length})] = count(); \
             if (str(arg1, {length}) == \"abcd\") {{ print(\"equal\"); }} }}"
        );
        let mut world = World::new(&text);
        world.memory.push((NAME_AT, b"abcdefghij\0".to_vec()));
        world.hit(&Hit {
            registers: vec![(Si, NAME_AT)],
            ..Hit::default()
        });
        let equal = if length == 4 { "equal\n" } else { "" };
        assert_eq!(world.out, format!("{shown}\n{equal}"));
        world.out.clear();
        assert_eq!(world.maps(), format!("@[{shown}]: 1\n\n"));
    }
}

/// A hit of the function that opens files, with memory at the address in `rdi`.
fn open_hit(world: &mut World, memory: &[u8]) -> Hit {
    world.memory.push((FILE_AT, memory.to_vec()));
    Hit {
        registers: vec![(Di, FILE_AT), (Si, 0x1234)],
        address: OPEN,
        ..Hit::default()
    }
}

#[test]
fn structures_in_each_other_are_shown_to_a_depth() {
    let mut world = World::new("kprobe:vfs_open { print(args.tall); }");
    let words = (1..=LEVELS).chain((1..=LEVELS).rev().map(|level| 10 * level));
    let hit = open_hit(
        &mut world,
        &words.flat_map(u64::to_le_bytes).collect::<Vec<_>>(),
    );
    world.hit(&hit);
    let tall = (0..11).map(|level| format!("Tall{level} {{ mark: {}, next: ", level + 1));
    let ends = (1..=11).rev().map(|level| format!(", end: {level}0 }}"));
    let shown = tall
        .chain(["Tall11 { mark: …, end: … }".into()])
        .chain(ends);
    assert_eq!(world.out, shown.collect::<String>() + "\n");
    let mut world = World::new("kprobe:vfs_open { print(args.narrow); }");
    let hit = open_hit(
        &mut world,
        &(1..=7_u64).flat_map(u64::to_le_bytes).collect::<Vec<_>>(),
    );
    world.hit(&hit);
    let narrow = (0..6).map(|level| format!("Narrow{level} {{ mark: {}, next: ", level + 1));
    let shown = narrow.chain(["7".into(), " }".repeat(6)]);
    assert_eq!(world.out, shown.collect::<String>() + "\n");
}

#[test]
fn a_number_is_put_together_from_memory_and_a_register() {
    let mut world =
        World::new("kprobe:vfs_open { printf(\"%x %d\\n\", args.split, args.constant); }");
    // Nothing is after its six bytes.
    let hit = open_hit(&mut world, &[1, 2, 3, 4, 5, 6]);
    world.hit(&hit);
    assert_eq!((&*world.out, world.faults), ("1234060504030201 0\n", 0));
}

#[test]
fn the_bytes_of_an_argument_in_memory_are_kept_and_no_more() {
    let mut world = World::new("kretprobe:vfs_open { print(args.triple); }");
    let bytes: Vec<u8> = [7_u32, 8, 9]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    let hit = open_hit(&mut world, &bytes);
    let on_return = Hit {
        address: OPEN,
        ..Hit::default()
    };
    world.call(&hit, &on_return);
    assert_eq!((&*world.out, world.faults), ("[7, 8, 9]\n", 0));
}

#[test]
fn all_the_bytes_that_fit_are_kept_for_the_return() {
    let text = "kretprobe:vfs_open { print(args.block); }";
    World::new(text);
    let more = text.replace("args.block", "args.block); print(args.path.len");
    let refusal = compiled_with(&more, &Fake::new(), &Options::default()).err();
    assert!(
        refusal.as_ref().is_some_and(|refusal| refusal.starts_with(
            "error: 272 bytes are kept from the entry to the return of a call; at most 256 fit"
        )),
        "{refusal:?}"
    );
}

#[test]
fn a_variable_takes_another_text() {
    let mut world = World::new(
        "kprobe:vfs_write { $t = comm; print($t); $t = \"dog\"; print($t); $t = comm; print($t); }",
    );
    world.hit(&write_hit());
    assert_eq!(world.out, "cat\ndog\ncat\n");
}

#[test]
fn maps_hold_values_that_are_no_whole_words() {
    for (value, shown) in [
        ("args.count", "6"),
        ("args.file.readable", "true"),
        ("args.file.mode", "Write"),
        ("args.shape", "Box { width: 7, height: 5 }"),
        ("args.triple", "[2, <unavailable>, 5]"),
        (
            "(args.count, args.shape)",
            "(6, Box { width: 7, height: 5 })",
        ),
    ] {
        let mut world = with_file(&format!("kprobe:vfs_write {{ @ = {value}; }}"), "");
        world.hit(&Hit {
            registers: vec![(Di, FILE_AT), (Si, 2 | 7 << 32), (Dx, 5), (Cx, 6)],
            ..Hit::default()
        });
        assert_eq!(world.maps(), format!("@: {shown}\n"), "{value}");
    }
}

#[test]
fn the_first_bytes_of_texts_are_compared() {
    for (most, literal, same) in [
        (7, "abcdefgX", true),
        (8, "abcdefgX", false),
        (8, "abcdefgh", true),
        (8, "abcdefghX", true),
        (9, "abcdefghX", false),
        (9, "abcdefgh", true),
        (9, "abcdefg", false),
    ] {
        let text =
            format!("kprobe:vfs_write {{ print(strncmp(str(arg1), \"{literal}\", {most})); }}");
        let mut world = World::new(&text);
        world.memory.push((NAME_AT, b"abcdefgh\0".to_vec()));
        world.hit(&write_hit());
        assert_eq!(
            world.out,
            format!("{}\n", u8::from(!same)),
            "{most} {literal}"
        );
    }
}

#[test]
fn a_reference_is_an_address_to_calculate_with() {
    let mut world = with_file(
        "kprobe:vfs_write { printf(\"%x %d\\n\", args.file, args.file.inode == args.file); \
         @ = max((uint64)args.file.inode); }",
        "",
    );
    world.hit(&write_hit());
    assert_eq!(world.out, "ffff800000200000 0\n");
    world.out.clear();
    assert_eq!(world.maps(), format!("@: {INODE_AT}\n"));
}
