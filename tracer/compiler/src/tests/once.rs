//! What is calculated once in a hit: a time, a map that changes, a step, where they are used again.
//!
//! In the machine here each `nsecs` is later than the one before, by 2 nanoseconds.

use bpf::context::Register::{Di, Si};

use super::{
    values::{with_file, write_hit},
    world::{Hit, World},
};

/// What a block prints. The first argument is 3.
fn printed(block: &str) -> String {
    let mut world = World::new(&format!("kprobe:vfs_write {{ {block} }}"));
    world.hit(&Hit {
        registers: vec![(Di, 3), (Si, u64::MAX)],
        ..Hit::default()
    });
    core::mem::take(&mut world.out)
}

#[test]
fn a_time_is_the_same_in_all_of_a_comparison() {
    // Below zero at first, and 1 if it is read again.
    let first = "(int64)(nsecs - 2001)";
    assert_eq!(
        printed(&format!("print(({first} > arg0, {first} < arg0));")),
        printed(
            "$t = (int64)(nsecs - 2001); $u = (int64)(nsecs - 2001); print(($t > arg0, $u < arg0));"
        )
    );
    assert_eq!(printed("print((int64)(nsecs - 2001) >= arg0);"), "false\n");
    assert_eq!(printed("print(arg0 <= (int64)(nsecs - 2001));"), "false\n");
}

#[test]
fn a_key_is_stepped_once_in_a_comparison() {
    assert_eq!(
        printed("@m[0] = (int64)-1; $i = 0; print(@m[$i++] < arg0); print($i); clear(@m);"),
        "true\n1\n"
    );
    assert_eq!(
        printed("@m[0] = (int64)5; $i = 0; print(@m[$i++] < arg0); print($i); clear(@m);"),
        "false\n1\n"
    );
}

#[test]
fn an_index_is_the_same_for_the_limit_and_the_element() {
    // The first one is inside, the next one would be outside.
    assert_eq!(
        printed("$a = (uint8[4])0x04030201; print($a[nsecs == 2000 ? 0 : 9]);"),
        "1\n"
    );
    assert_eq!(
        printed("@i = 1; $a = (uint8[4])0x04030201; print($a[@i++]); print(@i);"),
        "2\n@i: 2\n"
    );
}

#[test]
fn a_text_behind_an_address_is_read_from_one_place() {
    let mut world = with_file(
        "kprobe:vfs_write { $p = (File *)((uint64)args.file + (nsecs == 2000 ? 0 : 8)); \
         print($p.name); \
         $s = \"text\"; \
         $s = ((File *)((uint64)args.file + (nsecs % 4 == 2 ? 0 : 8))).name; print($s); \
         @p = args.file; print(@p.name); print((*@p).name); \
         $q = args.file; $n = (*$q++).name; print($n); print($q == args.file + 1); }",
        "a name",
    );
    world.hit(&write_hit());
    let lines: Vec<_> = world.out.lines().collect();
    assert_eq!(
        lines,
        ["a name", "a name", "a name", "a name", "a name", "true"]
    );
}

/// As in C: of a choice, and after `&&` and `||`, only what is meant is calculated.
#[test]
fn a_step_in_an_index_is_made_only_where_it_is_asked_for() {
    for (value, steps) in [
        ("arg0 > 5 ? $a[$i++] : 7", 0),
        ("arg0 > 1 ? $a[$i++] : 7", 1),
        ("arg0 > 5 && $a[$i++] == 1", 0),
        ("arg0 > 1 && $a[$i++] == 1", 1),
        ("arg0 > 1 || $a[$i++] == 1", 0),
        ("arg0 > 5 || $a[++$i] == 1", 1),
        ("arg0 > 5 ? *(uint8 *)(arg0 + $i++) : 7", 0),
        ("arg0 > 5 ? $s[$i++] : 7", 0),
        ("arg0 > 5 ? @m[$i++] : 7", 0),
        ("arg0 > 5 ? -1 < @m[$i++] : false", 0),
        ("arg0 > 5 ?: (bool)$a[$i++]", 1),
        ("arg0 > 1 ?: (bool)$a[$i++]", 0),
        ("$a[arg0 > 5 ? $i++ : 1]", 0),
        ("arg0 > 5 ? $i++ : 7", 0),
    ] {
        assert_eq!(
            printed(&format!(
                "$a = (uint8[4])0x04030201; $s = \"text\"; $i = 0; @m[0] = 5; clear(@m); \
                 $x = {value}; print($i);"
            )),
            format!("{steps}\n"),
            "{value}"
        );
    }
}

#[test]
fn the_key_of_an_entry_is_calculated_once() {
    for (statements, shown) in [
        (
            "@a[1] = avg(10); @a[2] = avg(33); @a[2] = avg(7); print((uint64)@a[$i++]);",
            "10\n2\n",
        ),
        (
            "@a[1] = min(10); @a[2] = min(33); print((uint64)@a[$i++]);",
            "10\n2\n",
        ),
        (
            "@a[1] = max(10); @a[2] = max(33); print((uint64)@a[$i++]);",
            "10\n2\n",
        ),
        (
            "@a[1, (1, \"x\")] = avg(4); print((uint64)@a[$i++, (1, \"x\")]);",
            "4\n2\n",
        ),
        (
            "@a[1] = 10; @a[2] = 33; @a[$i++] *= 2; print(@a[1]);",
            "20\n2\n",
        ),
        (
            "@a[1] = 10; @a[2] = 33; @a[$i++] += 2; print(@a[1]);",
            "12\n2\n",
        ),
        (
            "@a[1] = 10; @a[2] = 33; @a[$i++]++; print(@a[1]);",
            "11\n2\n",
        ),
        (
            "@a[1] = (1, 10); @a[2] = (2, 33); print(@a[$i++].1);",
            "10\n2\n",
        ),
        (
            "@a[1] = \"x\"; @a[2] = \"y\"; print(@a[$i++] == \"x\");",
            "true\n2\n",
        ),
        ("@a[1] = 5; print(has_key(@a, $i++));", "true\n2\n"),
        (
            "@a[1] = 5; $v = 0; print(find(@a, $i++, $v)); print($v);",
            "true\n5\n2\n",
        ),
        ("@a[1] = hist(5); delete(@a[$i++]); @a[9] = hist(1);", "2\n"),
        (
            "@a[1] = 5; @k = 1; @a[@k++] -= 3; print((@a[1], @k));",
            "(2, 2)\n1\n",
        ),
    ] {
        assert_eq!(
            printed(&format!("$i = 1; {statements} print($i); clear(@a);")),
            shown,
            "{statements}"
        );
    }
}

#[test]
fn a_step_is_made_once_wherever_it_stands() {
    for statement in [
        "for ($n : $i++..5) { @n += $n; }",
        "for ($n : 0..$i++) { @n += $n; }",
        "match $i++ { 1 => { } 2 => { } _ => { } }",
        "@n = hist($i++);",
        "@n = hist($i++, 3);",
        "@n = lhist($i++, 0, 10, 2);",
        "@n = stats($i++);",
        "@n = avg((int64)$i++);",
        "@n = min((int64)$i++);",
        "@n = max($i++);",
        "@n = tseries($i++, 100ms, 4);",
        "@n[$i++] = hist(3);",
        "@n[$i++] = lhist(3, 0, 10, 2);",
        "@n[$i++] = avg(3);",
        "@n[$i++] = min(3);",
        "@n[$i++] = tseries(3, 100ms, 4);",
        "@n[$i++] = (1, \"text\");",
        "@n[$i++] = 1;",
        "@n[1] = 2; zero(@n[$i++]);",
        "@n[1] = hist(2); zero(@n[$i++]);",
        "@n[1] = hist(2); print(@n[$i++]);",
        "@n[1] = lhist(2, 0, 10, 2); clear(@n[$i++]);",
        "@n[1] = (1, 2); print(@n[$i++]); $t = @n[1];",
        "printf(\"%*d %c\", $i++, 1, 70);",
        "printf(\"%-5s|%x\", $i++ == 1, 1);",
        "print(str(arg0, $i++));",
        "print(buf(arg0, $i++));",
        "print(is_err($i++)); print(bswap((uint32)$i));",
        "print(bswap((uint32)$i++));",
        "print((int8[8])$i++);",
        "print((bool)$i++);",
        "print(-$i++);",
        "print(($i++, 1));",
        "print((a=$i++, b=2));",
        "$t = ($i++, \"x\"); $t = (arg0, \"y\");",
        "print(strftime(\"%s\", $i++));",
        "print(strerror($i++)); print(ksym(0));",
        "print(ksym($i++) == \"vfs_read\");",
        "print(((int64)$i++ < arg0, 1));",
        "print(arg0 >= (int64)$i++);",
        "print((int64)$i++ != arg0);",
        "$j = (uint64)1; print($j++ == -10); $i = $j;",
        "$j = (uint64)1; print(-10 < $j++); $i = $j;",
        "$k = (int64)-5; $j = (uint64)1; print($j++ <= $k); $i = $j;",
        "$k = (int64)-5; $j = (uint64)1; print($k >= $j++); $i = $j;",
        "$k = (int64)-5; $j = (uint64)1; print($k-- < $j++); $i = $j; print($k);",
        "$r = arg0 ? $i++ : 3;",
        "$r = $i++ ?: 3;",
        "$r = { $i++ };",
        "let $w: uint8 = $i++;",
        "print(1 << $i++); print(8 / $i); print(8 % 3);",
        "print(8 / $i++);",
        "print((int64)-8 % (int64)$i++);",
        "print(*(uint16 *)(arg0 + $i++));",
        "print(((uint16 *)arg0)[$i++]);",
        "if ($i++ == 1) { } else if ($i == 7) { }",
        "unroll (1) { $r = $i++; }",
        "print((1, (2, $i++)) == (1, (2, 1)));",
        "@n = $i++; @n += 1;",
        "@n = 1; @n *= $i++;",
        "@n[1] = 1; @n[1] -= (int64)$i++;",
        "$r = (int64)5; $r /= $i++;",
    ] {
        let said = printed(&format!("$i = 1; {statement} printf(\"\\n%d\", $i);"));
        assert_eq!(said.lines().last(), Some("2"), "{statement}: {said}");
    }
}
