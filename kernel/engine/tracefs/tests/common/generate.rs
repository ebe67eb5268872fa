//! Definitions made at random, most of them right.

use proptest::prelude::*;

/// A fetch that is mostly right.
fn fetch() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("%di".to_owned()),
        Just("$stack".to_owned()),
        (0..3000_u32).prop_map(|word| format!("$stack{word}")),
        (1..9_u32).prop_map(|number| format!("$arg{number}")),
        Just("$retval".to_owned()),
        Just("$comm".to_owned()),
        "\\$(addr|old|new)",
        any::<i64>().prop_map(|value| format!("\\{value}")),
        any::<u64>().prop_map(|address| format!("@{address:#x}")),
        any::<i16>().prop_map(|offset| format!("@linux_proc_banner{offset:+}")),
        any::<u16>().prop_map(|offset| format!("@+{offset:#x}")),
        "[ -~&&[^ #]]{0,8}".prop_map(|text| format!("\\\"{text}\"")),
    ];
    let nested = leaf.prop_recursive(16, 16, 1, |inner| {
        (any::<bool>(), any::<bool>(), any::<u16>(), inner).prop_map(|(minus, user, offset, of)| {
            let sign = if minus { '-' } else { '+' };
            format!("{sign}{}{offset}({of})", if user { "u" } else { "" })
        })
    });
    let types = prop_oneof![
        Just(String::new()),
        "[usx](8|16|32|64)".prop_map(|ty| format!(":{ty}")),
        "(string|ustring|symstr|symbol|char)".prop_map(|ty| format!(":{ty}")),
        (0..66_u8, 0..66_u8, "(8|16|32|64)")
            .prop_map(|(width, offset, bits)| format!(":b{width}@{offset}/{bits}")),
    ];
    let array = prop_oneof![
        4 => Just(String::new()),
        1 => (0..66_u8).prop_map(|count| format!("[{count}]")),
    ];
    (nested, types, array).prop_map(|(fetch, ty, array)| {
        let array = if ty.is_empty() { String::new() } else { array };
        format!("{fetch}{ty}{array}")
    })
}

/// A line that is mostly right.
pub fn line() -> impl Strategy<Value = String> {
    let place = prop_oneof![
        Just("vfs_read"),
        Just("vfs_read+0x10"),
        Just("vfs_read%return"),
        Just("0xffff800000001000"),
        Just("loaded:start"),
        Just("later:x+4"),
        Just("func.isra.0"),
        Just("/bin/my-shell:0x10"),
        Just("/bin/my-shell:0x10(0x20)"),
        Just("/bin/my-shell:16%return"),
        Just("/bin/my-shell:main"),
        Just("/bin/my-shell:main+4(16)"),
        Just("/bin/my-shell:main%return"),
    ];
    let watch = prop_oneof![
        Just("w@linux_proc_banner"),
        Just("rw@linux_proc_banner+8:4"),
        Just("@linux_proc_banner-0x10"),
        Just("w@0xffff800000100001:1"),
        Just("w@linux_proc_banner:3"),
        Just("r@linux_proc_banner"),
    ];
    let name = prop_oneof![
        Just(""),
        Just(":n"),
        Just(":g/n"),
        Just(":g.n"),
        Just(":g-1/")
    ];
    let argument = prop_oneof![
        fetch(),
        ("[a-c]{1,2}", fetch()).prop_map(|(n, f)| format!("{n}={f}"))
    ];
    let arguments = proptest::collection::vec(argument, 0..4);
    let place = ("(p|r|r7)", place).prop_map(|(letter, place)| (letter, place));
    let watch = watch.prop_map(|watch| ("w".to_owned(), watch));
    let place = prop_oneof![4 => place, 1 => watch];
    (name, place, arguments).prop_map(|(name, (letter, place), arguments)| {
        format!("{letter}{name} {place} {}", arguments.join(" "))
    })
}
