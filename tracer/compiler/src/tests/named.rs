//! Functions and probes compared with their names.

use super::{
    fake::{Fake, READ, WRITE, refusal},
    world::{Hit, World},
};

/// What a program prints at hits of these addresses, after a tick.
fn printed(text: &str, addresses: &[u64]) -> String {
    let mut world = World::new(text);
    for address in addresses {
        world.hit(&Hit {
            address: *address,
            ..Hit::default()
        });
    }
    core::mem::take(&mut world.out)
}

/// A rate is not shown as the nanoseconds that it is rounded to.
#[test]
fn a_rate_is_named_as_the_text_has_it() {
    let mut world = World::new(
        "profile:hz:99, interval:hz:3, profile:ms:20 { print(probe); } \
         profile:hz:99 { print(probe == \"profile:hz:99\"); }",
    );
    world.tick();
    assert_eq!(
        world.out,
        "profile:hz:99\ninterval:hz:3\nprofile:ms:20\ntrue\n"
    );
}

#[test]
fn a_function_is_compared_with_the_name_that_a_probe_would_have() {
    let text = "kprobe:vfs_write, kprobe:vfs_read { print((func == \"vfs_write\", func != \
                \"kernel::fs::vfs_write\", \"vfs_read\" == func, ip == \"vfs_read\")); }";
    assert_eq!(
        printed(text, &[WRITE, READ]),
        "(true, false, false, false)\n(false, true, true, true)\n"
    );
    // Any address in it is of it, and the first one behind it is not.
    let text =
        "kprobe:vfs_write { if (ksym(arg0) == \"vfs_read\") { print(1); } else { print(0); } }";
    let bytes = Fake::new()
        .functions
        .iter()
        .find(|of| of.address == READ)
        .unwrap()
        .bytes;
    let mut world = World::new(text);
    for argument in [READ - 1, READ, READ + bytes - 1, READ + bytes, 0] {
        world.hit(&Hit {
            registers: vec![(bpf::context::Register::Di, argument)],
            ..Hit::default()
        });
    }
    assert_eq!(world.out, "0\n1\n1\n0\n0\n");
    assert_eq!(
        refusal("kprobe:vfs_write { print(func == \"vfs_wriet\"); }"),
        "no function of the kernel is called `vfs_wriet`"
    );
}

#[test]
fn a_probe_is_compared_with_its_name() {
    let text = "kprobe:vfs_*, kretprobe:vfs_read /probe != \"kprobe:vfs_open\"/ { \
                print((probe, probe == \"kprobe:vfs_write\", probe == \"k:kernel::fs::vfs_read\", \
                probe == \"kretprobe:vfs_read\", probe == \"begin\", probe == probe)); }";
    assert_eq!(
        printed(text, &[WRITE]),
        "(kprobe:vfs_write, true, false, false, false, true)\n"
    );
    assert_eq!(
        printed(
            "kprobe:vfs_read, kretprobe:vfs_read { print((probe == \"kprobe:vfs_read\", probe \
                 == \"kretprobe:vfs_read\")); }",
            &[READ]
        ),
        "(true, false)\n"
    );
    let mut world = World::new(
        "interval:ms:1000, END { print((probe == \"interval:s:1\", probe == \"i:ms:1000\", \
         probe == \"interval:s:2\", probe == \"end\", probe)); }",
    );
    world.tick();
    assert_eq!(
        world.out,
        "(true, true, false, false, interval:s:1)\n(false, false, false, true, end)\n"
    );
    let text = "session:vfs_* { @ = probe == \"session:vfs_write\"; print(@); } return { \
                print(probe == \"session:vfs_read\"); }";
    let mut world = World::new(text);
    world.call(
        &Hit {
            address: WRITE,
            ..Hit::default()
        },
        &Hit::default(),
    );
    assert_eq!(world.out, "@: true\nfalse\n");
    for (text, message) in [
        (
            "kprobe:vfs_read { print(probe == \"kprobe:vfs_read /1/\"); }",
            "`kprobe:vfs_read /1/` is no name of a probe",
        ),
        (
            "kprobe:vfs_read { print(probe == \"macro m { 1 } begin\"); }",
            "`macro m { 1 } begin` is no name of a probe",
        ),
        (
            "kprobe:vfs_read { print(probe == \"vfs_read\"); }",
            "`vfs_read` is no name of a probe",
        ),
        (
            "kprobe:vfs_read { print(probe == \"kprobe:a, kprobe:b\"); }",
            "`kprobe:a, kprobe:b` is no name of a probe",
        ),
        (
            "kprobe:vfs_read { print(probe == \"kprobe:vfs_raed\"); }",
            "no function of the kernel is called `vfs_raed`",
        ),
        (
            "kprobe:vfs_read { @p = probe; print(@p == \"kprobe:vfs_read\"); }",
            "only the probe that was hit can be compared with a name",
        ),
        (
            "kprobe:vfs_read { print(probe < \"kprobe:vfs_read\"); }",
            "this is a text, not a number",
        ),
    ] {
        assert_eq!(refusal(text), message, "{text}");
    }
}

#[test]
fn begin_and_end_have_the_names_that_bpftrace_gives_them() {
    let mut world = World::new("BEGIN, end { print(probe); print(probe == \"begin\"); }");
    world.tick();
    assert_eq!(world.out, "begin\ntrue\nend\nfalse\n");
}
