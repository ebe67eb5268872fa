//! Pointers as parts of tuples and records, in keys and in maps: they lead on from there.

use bpf::context::Register::{Di, Si};

use super::{
    fake::refusal,
    user::{RECORD_AT, with_program},
    values::{with_file, write_hit},
    world::Hit,
};

/// What a block prints whose first argument is a file with the position -5 and the inode 42.
fn printed(block: &str) -> String {
    let mut world = with_file(&format!("kprobe:vfs_write {{ {block} }}"), "name");
    world.hit(&write_hit());
    assert_eq!(world.faults, 0, "{block}");
    core::mem::take(&mut world.out)
}

#[test]
fn a_pointer_in_a_tuple_or_a_record_leads_to_what_it_led_to() {
    assert_eq!(
        printed(
            "$t = (args.file, 1); print($t.0.pos); print($t.0->inode->number); \
             print((*$t.0).inode.links); print(($t.0 + 1 == args.file + 1, $t.0 == args.file)); \
             $r = (file=args.file, n=(args.file.inode, 2)); print(($r.file.pos, $r.n.0.number)); \
             $u = $t; print($u.0.pos); print(sizeof(*$u.0)); $p = (typeof($u.0))arg0; \
             print($p.pos); print($t[0].pos); print((arg0 > 1 ? $t : $u).0.pos);"
        ),
        "-5\n42\n3\n(true, true)\n(-5, 42)\n-5\n40\n-5\n-5\n-5\n"
    );
    assert_eq!(
        printed("$t = (0, 1); $t = (args.file, 2); print($t.0.pos);"),
        "-5\n"
    );
}

#[test]
fn a_pointer_in_a_map_leads_to_what_it_led_to() {
    assert_eq!(
        printed(
            "@t = (args.file, 1); print(@t.0.pos); @k[args.file, 1] = 2; @v[1] = args.file; \
             $v = (@v[1], 1); print($v.0.pos); @later[1] = ($v.0, 1); print(@later[1].0.pos);"
        ),
        "-5\n-5\n-5\n"
    );
    // What the map holds is told by a later clause.
    let mut world = with_file(
        "kprobe:vfs_read { $t = (@p, 1); print($t.0.pos); } kprobe:vfs_write { @p = args.file; } \
         interval:s:1 { for ($kv : @k) { print($kv.0.pos); print($kv.1.0.pos); } } \
         kprobe:vfs_write { @k[args.file] = (args.file, 1); }",
        "name",
    );
    world.hit(&write_hit());
    world.hit(&Hit {
        address: super::fake::READ,
        ..write_hit()
    });
    world.tick();
    assert_eq!((&*world.out, world.faults), ("-5\n-5\n-5\n", 0));
}

/// It would lead to a value of another type.
#[test]
fn a_part_that_is_given_other_addresses_leads_nowhere() {
    for other in ["args.file.inode", "arg1"] {
        assert_eq!(
            refusal(&format!(
                "kprobe:vfs_write {{ $t = (args.file, 1); $t = ({other}, 1); print($t.0.pos); }}"
            )),
            "a number has no field `pos`"
        );
    }
    assert_eq!(
        refusal("kprobe:vfs_write { $t = (args.file, 1); $t = ((&File)uptr(arg1), 1); }"),
        "`$t` holds a tuple (an address, a number), and this is a tuple (an address of a program, \
         a number)"
    );
    for other in ["args.file.inode", "arg1"] {
        assert_eq!(
            refusal(&format!(
                "kprobe:vfs_write {{ @p = args.file; @p = {other}; print(@p.pos); }}"
            )),
            "a number has no field `pos`"
        );
    }
    let twice = |kept: &str, other: &str| {
        refusal(&format!(
            "kprobe:vfs_write {{ {kept} = args.file; {kept} = {other}; }}"
        ))
    };
    assert_eq!(
        twice("$p", "args.file.inode"),
        "`$p` leads to another type than this pointer"
    );
    assert_eq!(
        twice("$p", "(&File)uptr(arg1)"),
        "`$p` leads into other memory than this pointer: the kernel's, or that of a program"
    );
    assert_eq!(
        twice("@p[1]", "(&File)uptr(arg1)"),
        "`@p` holds an address, and this is an address of a program"
    );
    // Null is of all types, and so is what leads to nothing in particular.
    for other in ["0", "kptr(arg1)", "(&File)arg1"] {
        assert!(twice("$p", other).ends_with("compiles"), "{other}");
    }
    assert_eq!(
        refusal("kprobe:vfs_write { @[args.file] = 1; @[(&File)uptr(arg1)] = 1; }"),
        "this key is an address of a program; elsewhere it is an address"
    );
}

#[test]
fn a_pointer_of_a_program_leads_into_its_memory_from_a_tuple() {
    let mut world = with_program(
        "kprobe:vfs_write { $t = ((&File)uptr(arg0), 1); print($t.0.pos); @k = $t; \
         print(@k.0.inode.number); $n = (uptr(arg0 + 8), 1); print((int64)*$n.0); }",
        &[],
    );
    world.hit(&Hit {
        registers: vec![(Di, RECORD_AT), (Si, 0)],
        ..Hit::default()
    });
    assert_eq!((&*world.out, world.faults), ("-7\n42\n-7\n", 0));
}
