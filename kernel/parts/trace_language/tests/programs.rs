//! Whole programs: what is taken, and what is refused with which words.

use trace_language::parse_with;

/// A program for each construct, the one-liners of bpftrace's tutorial among them.
const PROGRAMS: &[&str] = &[
    "BEGIN { printf(\"hello world\\n\"); }",
    "begin { printf(\"hello\\n\") } end { clear(@a); }",
    "tracepoint:syscalls:sys_enter_openat { printf(\"%s %s\\n\", comm, str(args.filename)); }",
    "tracepoint:raw_syscalls:sys_enter { @[comm] = count(); }",
    "tracepoint:syscalls:sys_exit_read /pid == 18644/ { @bytes = hist(args.ret); }",
    "kretprobe:vfs_read { @bytes = lhist(retval, 0, 2000, 200); }",
    "kprobe:vfs_read { @start[tid] = nsecs; }\n\
     kretprobe:vfs_read /@start[tid]/ { @ns[comm] = hist(nsecs - @start[tid]); delete(@start, tid); }",
    "tracepoint:sched:sched* { @[probe] = count(); } interval:s:5 { exit(); }",
    "profile:hz:99 { @[kstack] = count(); }",
    "tracepoint:sched:sched_switch { @[kstack] = count(); }",
    "kprobe:vfs_open { printf(\"open path: %s\\n\", str(((struct path *)arg0)->dentry->name)); }",
    "#!/usr/bin/env trace\n// a\n/* b\n c */ kprobe:f { }",
    "k:vfs_*,kr:kernel::fs::vfs::vfs_write,\nkprobe:*write*+0x10 { @++ }",
    "kprobe:<T as Trait>::f, kprobe:kernel::run::{closure#0}, kprobe:\"<impl Foo>::bar\" { }",
    "kprobe:core::ops::{{closure}}::x, inline:Vec<T, A>::push { @ = count() }",
    "kprobe:_ZN4core3ops8function6FnOnce9call_once17h$LT$u20$E.llvm.12 { @ = count() }",
    "session:vfs_write /pid > 1/ { $at = nsecs; } return /retval.Ok/ { @ = hist(nsecs - $at); }",
    "line:kernel/src/fs/vfs.rs:120, line:vfs.rs:7 /$1/ { @ = count(); }",
    "interval:1s, interval:ms:10, interval:us:5, i:hz:99, p:5ms { @ = count(); }",
    "kprobe:f { if (pid == 1) { @a++; } else if pid { --@a; } else { @a -= 2 } }",
    "kprobe:f { unroll (3) { @ = count(); } unroll($1) { @++; } }",
    "kprobe:f { for ($i : 0..10) { if ($i == 5) { break; } @[$i] = $i; continue } }",
    "kprobe:f { $i = 0; while ($i < 5) { $i++; } return; }",
    "kprobe:f { return 1 }",
    "kprobe:f { let $a; let $b = 1; let $c: uint8 = 300; _ = $a; }",
    "kretprobe:f { match retval { Ok($n) => { @ = sum($n); } Err(_) => @errors = count(), } }",
    "kprobe:f { match args.shape { Shape::Circle($r) => {} Moved { to: $t, by: $b } => {}, \
     1 | -2 | \"x\" | true => {}, _ => { @ = 1 } } }",
    "kprobe:f { $t = (1, \"a\", ($x, pid)); print($t.2.0); @[$t] = $t.1; }",
    "kprobe:f { @a = (u8)arg0; @b = (&kernel::fs::File)arg1; @c = (*const [u8; 4])arg2; \
     @d = (Option<&[u8]>)-1; @e = (uint64)$x[3]; @f = (&&mut str)arg3; }",
    "kprobe:f { @x[1, comm] += 2; @y <<= 1; @z |= 0x1f; $q = *args.p; $r = ~$q ^ !$q; }",
    "kprobe:f { $a = pid ? 1 : tid ? 2 : 3; print(1 + 2 * 3 << 4 & 5 | 6 && 7 || 8 == 9); }",
    "kprobe:f { @ = args->buffer.len; @[kernel::sched::COUNT] = reg(\"di\"); print(kstack(3)); }",
    "kprobe:f /args.count / 2 > 5/ { @ = count(); }",
    "kprobe:f/comm==\"a/ {\"/{@=count();}",
];

#[test]
fn each_construct_is_taken() {
    for program in PROGRAMS {
        if let Err(mistakes) = parse_with(program, &["3"]) {
            for mistake in mistakes {
                println!("{}", mistake.show(program));
            }
            panic!("{program}");
        }
    }
}
