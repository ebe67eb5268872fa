//! Definitions that are refused, each with the reason and its column.
//!
//! The mistakes of Linux's selftest have its columns and its messages. A `^` marks the column in
//! the line.

mod common;

use common::lines::{definition, refused, refused_by, refused_in};
use tracefs::{definition::File, fetch::Grammar, refusal::Reason};

#[test]
fn mistakes_of_the_selftest_have_its_columns() {
    for (marked, reason) in [
        ("p^100 vfs_read", Reason::BadMaxactiveType),
        ("r^1a111 vfs_read", Reason::BadMaxactive),
        ("r^100000 vfs_read", Reason::MaxactiveTooBig),
        ("p ^non_exist_func", Reason::BadProbeAddress),
        ("p ^hoge-fuga", Reason::BadProbeAddress),
        ("p ^hoge+1000-1000", Reason::BadProbeAddress),
        ("r ^vfs_read+10", Reason::BadReturnProbe),
        ("p:^/bar vfs_read", Reason::NoGroupName),
        (
            "p:^12345678901234567890123456789012345678901234567890123456789012345/bar vfs_read",
            Reason::GroupTooLong,
        ),
        ("p:^foo.1/bar vfs_read", Reason::BadGroupName),
        ("p:^ vfs_read", Reason::NoEventName),
        (
            "p:foo/^12345678901234567890123456789012345678901234567890123456789012345 vfs_read",
            Reason::EventTooLong,
        ),
        ("p:foo/^bar.1 vfs_read", Reason::BadEventName),
        ("p vfs_read ^$retval", Reason::RetvalOnProbe),
        ("p vfs_read ^$stack10000", Reason::BadStackNumber),
        ("p vfs_read ^$arg10000", Reason::BadArgumentNumber),
        ("p vfs_read ^$none_var", Reason::BadVariable),
        ("p vfs_read ^%none_reg", Reason::BadRegister),
        ("p vfs_read ^@12345678abcde", Reason::BadMemoryAddress),
        ("p vfs_read ^@+10", Reason::FileOnKprobe),
        (r"p vfs_read arg1=\^x", Reason::BadImmediate),
        (r#"p vfs_read arg1=\"abcd^"#, Reason::StringNotClosed),
        ("p vfs_read ^+0@0)", Reason::DereferenceNeedsBrace),
        ("p vfs_read ^+0ab1(@0)", Reason::BadDereferenceOffset),
        ("p vfs_read +0(+0(@0^)", Reason::DereferenceNotClosed),
        ("p vfs_read +0(^$comm)", Reason::CommDereferenced),
        ("p vfs_read ^&1", Reason::BadFetch),
        (
            "p vfs_read +0(^+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(@0))))))))))))))",
            Reason::TooManySteps,
        ),
        ("p vfs_read +0(@11):u8[10^", Reason::ArrayNotClosed),
        ("p vfs_read +0(@11):u8[10]^a", Reason::BadArraySuffix),
        ("p vfs_read +0(@11):u8[^10a]", Reason::BadArrayNumber),
        ("p vfs_read +0(@11):u8[^256]", Reason::ArrayTooBig),
        ("p vfs_read @11:^unknown_type", Reason::BadType),
        ("p vfs_read $stack0:^string", Reason::BadString),
        ("p vfs_read @11:^b10@a/16", Reason::BadBitfield),
        (
            "p vfs_read ^arg123456789012345678901234567890=@11",
            Reason::ArgumentNameTooLong,
        ),
        ("p vfs_read ^=@11", Reason::NoArgumentName),
        ("p vfs_read ^var.1=@11", Reason::BadArgumentName),
        ("p vfs_read var1=@11 ^var1=@12", Reason::UsedArgumentName),
        ("p vfs_read arg1=^", Reason::NoArgumentBody),
        ("p vfs_read^%hoge", Reason::BadAddressSuffix),
        ("p ^vfs_read+10%return", Reason::BadReturnProbe),
        ("p vfs_read ^$arg*", Reason::NoArgumentNames),
    ] {
        refused(marked, reason);
    }
}

#[test]
fn longest_fetch_depends_on_the_release() {
    let marked = "p vfs_read ^+1234567(+1234567(+1234567(+1234567(+1234567(+1234567(@1234))))))";
    refused_by(&Grammar::LINUX_6, marked, Reason::ArgumentTooLong);
    definition(&marked.replace('^', ""));
    let fetch = |bytes: usize| format!("p vfs_read a=\\\"{}\"", "x".repeat(bytes - 3));
    definition(&fetch(255));
    refused(&fetch(256).replace("a=", "a=^"), Reason::ArgumentTooLong);
}

#[test]
fn other_mistakes_have_their_columns() {
    for (marked, reason) in [
        ("^a:x vfs_read", Reason::BadCommand),
        ("^!p:x vfs_read", Reason::BadCommand),
        ("p ^", Reason::NoPlace),
        ("p:x ^", Reason::NoPlace),
        ("p^x vfs_read", Reason::BadMaxactiveType),
        ("r^0 vfs_read", Reason::BadMaxactive),
        ("r^10fuzz vfs_read", Reason::BadMaxactive),
        ("r^x:y vfs_read", Reason::BadMaxactive),
        ("r^-1 vfs_read", Reason::BadMaxactive),
        ("r^4097 vfs_read", Reason::MaxactiveTooBig),
        ("r^1000000 vfs_read", Reason::MaxactiveTooBig),
        ("r^4294967297 vfs_read", Reason::BadMaxactive),
        ("p ^name_show", Reason::SymbolNotUnique),
        ("p ^memory_is_out", Reason::OutOfMemory),
        ("p ^/bin/sh:0x10", Reason::UserProbe),
        ("p ^vfs_read-1", Reason::BadProbeAddress),
        ("p ^vfs_read+0x100000000", Reason::BadProbeAddress),
        ("p ^vfs_read+0xffffffffffffffff", Reason::BadProbeAddress),
        ("p ^vfs_read+", Reason::BadProbeAddress),
        ("p ^vfs_read+1+1", Reason::BadProbeAddress),
        ("p ^+10", Reason::BadProbeAddress),
        ("p ^loaded:nothing", Reason::BadProbeAddress),
        ("p ^loaded:", Reason::BadProbeAddress),
        ("p ^:vfs_read", Reason::BadProbeAddress),
        ("r ^0xffff800000001004", Reason::BadReturnProbe),
        ("r ^0x10", Reason::BadReturnProbe),
        ("p vfs_read^%", Reason::BadAddressSuffix),
        ("p:^1g/bar vfs_read", Reason::BadGroupName),
        ("p:^a:b/bar vfs_read", Reason::BadGroupName),
        ("p:foo.^1 vfs_read", Reason::BadEventName),
        ("p:foo/^a-b vfs_read", Reason::BadEventName),
        ("p:^a-b vfs_read", Reason::BadEventName),
        ("p vfs_read ^@", Reason::BadMemoryAddress),
        ("p vfs_read ^@unknown", Reason::BadMemoryAddress),
        ("p vfs_read ^@name_show", Reason::SymbolNotUnique),
        ("p vfs_read ^@memory_is_out", Reason::OutOfMemory),
        (
            "p vfs_read ^@linux_proc_banner*10",
            Reason::BadMemoryAddress,
        ),
        (
            "p vfs_read ^@linux_proc_banner/10",
            Reason::BadMemoryAddress,
        ),
        (
            "p vfs_read ^@linux_proc_banner%10",
            Reason::BadMemoryAddress,
        ),
        (
            "p vfs_read ^@linux_proc_banner&10",
            Reason::BadMemoryAddress,
        ),
        (
            "p vfs_read ^@linux_proc_banner|10",
            Reason::BadMemoryAddress,
        ),
        ("p vfs_read ^$stackp", Reason::BadVariable),
        ("p vfs_read ^$stack0+10", Reason::BadVariable),
        ("p vfs_read ^$stack1-10", Reason::BadVariable),
        ("p vfs_read ^$stack2049", Reason::BadStackNumber),
        (
            "p vfs_read ^$stack99999999999999999999999",
            Reason::BadStackNumber,
        ),
        ("p vfs_read ^$arg0", Reason::BadArgumentNumber),
        ("p vfs_read ^$argx", Reason::BadVariable),
        ("p vfs_read a=^$arg*", Reason::NoArgumentNames),
        ("p vfs_read+4 ^$arg1", Reason::NotFunctionEntry),
        ("p vfs_read ^$", Reason::BadVariable),
        ("p vfs_read ^%rax", Reason::BadRegister),
        ("p vfs_read ^%ex", Reason::BadRegister),
        ("p vfs_read ^+(%ax)", Reason::BadDereferenceOffset),
        ("p vfs_read ^-(%ax)", Reason::BadDereferenceOffset),
        ("p vfs_read ^+-8(%ax)", Reason::BadDereferenceOffset),
        (
            "p vfs_read ^+0x8000000000000000(%ax)",
            Reason::BadDereferenceOffset,
        ),
        ("p vfs_read ^(%ax+10)", Reason::BadFetch),
        ("p vfs_read ^(%ax)", Reason::BadFetch),
        ("p vfs_read +0(%ax)^+10", Reason::BadFetch),
        ("p vfs_read +u8(^$none)", Reason::BadVariable),
        ("p vfs_read -u8(+8(^&))", Reason::BadFetch),
        ("p vfs_read +0(^)", Reason::BadFetch),
        (r#"p vfs_read +0(^\"x")"#, Reason::CommDereferenced),
        (r#"p vfs_read \"^"#, Reason::StringNotClosed),
        (r#"p vfs_read \"a"b^"#, Reason::StringNotClosed),
        (r"p vfs_read \^", Reason::BadImmediate),
        (r"p vfs_read \^+x", Reason::BadImmediate),
        ("p vfs_read a=^b=%ax", Reason::NoArgumentNames),
        ("p vfs_read ^hoge", Reason::NoArgumentNames),
        ("p vfs_read %ax:^:x16", Reason::BadType),
        ("p vfs_read %ax:^y16", Reason::BadType),
        ("p vfs_read %ax:^%px", Reason::BadType),
        ("p vfs_read %ax:^%pd[2]", Reason::BadType),
        ("p vfs_read $comm:^%pD", Reason::NeedStringType),
        ("p vfs_read ^hoge:%pD", Reason::NoArgumentNames),
        ("p vfs_read x16:^%ax", Reason::BadType),
        ("p vfs_read %ax:^", Reason::BadType),
        ("p vfs_read %ax:^x128", Reason::BadType),
        ("p vfs_read %ax:^b1@0/12", Reason::BadType),
        ("p vfs_read %ax:^b1@0", Reason::BadType),
        ("p vfs_read %ax:^b1@0/8x", Reason::BadType),
        ("p vfs_read %ax:^b0@0/8", Reason::BadBitfield),
        ("p vfs_read %ax:^b1/8", Reason::BadBitfield),
        ("p vfs_read %ax:^b5@4/8", Reason::BadBitfield),
        (
            "p vfs_read %ax:^b18446744073709551615@1/64",
            Reason::BadBitfield,
        ),
        ("p vfs_read ^%rax:b5@4/8", Reason::BadRegister),
        ("p vfs_read ^%rax:string", Reason::BadRegister),
        ("p vfs_read $comm:^x64", Reason::NeedStringType),
        ("p vfs_read $comm:^string[2]", Reason::NeedStringType),
        (r#"p vfs_read \"a":^u8"#, Reason::NeedStringType),
        ("p vfs_read $stack:^string", Reason::BadString),
        ("p vfs_read %ax:^string", Reason::BadString),
        ("p vfs_read %ax:^u8[4]", Reason::BadString),
        ("p vfs_read +u0(%di):^u8[4]", Reason::BadString),
        (r"p vfs_read \1:^string[2]", Reason::BadString),
        (r"p vfs_read \1:^symstr", Reason::BadSymbolString),
        ("p vfs_read $stack:^symstr", Reason::BadSymbolString),
        ("p vfs_read +u0(%di):^symstr", Reason::BadSymbolString),
        ("p vfs_read +0(%di):^symstr[2]", Reason::BadString),
        ("p vfs_read +0(%di):u8[^0]", Reason::BadArrayNumber),
        ("p vfs_read +0(%di):u8[^]", Reason::BadArrayNumber),
        ("p vfs_read +0(%di):u8[^65]", Reason::ArrayTooBig),
        ("p vfs_read ^common_pid=%ax", Reason::UsedArgumentName),
        ("p vfs_read ^__probe_ip=%ax", Reason::UsedArgumentName),
        ("p vfs_read %ax ^arg1=%bx", Reason::UsedArgumentName),
        ("r vfs_read a=%ax ^a=$retval", Reason::UsedArgumentName),
    ] {
        refused(marked, reason);
    }
}

#[test]
fn earlier_part_is_refused_first() {
    // Linux looks at the number of instances, the place, the name and the arguments in this order.
    refused("r^0:/x nothing %rax", Reason::BadMaxactive);
    refused("r:/x ^nothing %rax", Reason::BadProbeAddress);
    refused("r:^/x vfs_read %rax", Reason::NoGroupName);
    refused("r:x vfs_read ^%rax", Reason::BadRegister);
}

/// The lines of Linux's selftest for `uprobe_events`, and ours.
#[test]
fn mistakes_in_places_of_programs_have_their_columns() {
    for (marked, reason) in [
        ("p ^/non_exist_file:100", Reason::FileNotFound),
        ("p ^/bin:10", Reason::NoRegularFile),
        ("p /bin/my-shell:10(^a)", Reason::BadReferenceCounter),
        ("p /bin/my-shell:10(10^", Reason::ReferenceCounterNotClosed),
        (
            "p /bin/my-shell:10(10)^a",
            Reason::BadReferenceCounterSuffix,
        ),
        ("p /bin/my-shell:^-10", Reason::BadUserOffset),
        ("p /bin/my-shell:^nothing", Reason::BadUserOffset),
        ("p /bin/my-shell:^main+x", Reason::BadUserOffset),
        ("p /bin/my-shell:^new", Reason::SymbolNotUnique),
        ("p /bin/my-shell:10^%hoge", Reason::BadAddressSuffix),
        (
            "p /bin/my-shell:10^%return(10",
            Reason::ReferenceCounterNotClosed,
        ),
        ("p /bin/my-shell:10 ^@+ab", Reason::BadFileOffset),
        ("p /bin/my-shell:10 ^@+0x4000", Reason::BadFileOffset),
        ("p /bin/my-shell:10 ^@symbol", Reason::SymbolOnUserProbe),
        ("p /bin/my-shell:10 ^@12x", Reason::BadMemoryAddress),
        ("p /bin/my-shell:10 ^$arg1", Reason::NotFunctionEntry),
        ("r /bin/my-shell:10 ^$arg1", Reason::NotFunctionEntry),
        ("p /bin/my-shell:10 ^$retval", Reason::RetvalOnProbe),
        ("p ^vfs_read", Reason::KernelProbe),
        ("p ^0x10", Reason::KernelProbe),
    ] {
        let marked = match reason {
            // The column is after the number.
            Reason::ReferenceCounterNotClosed => marked.replace('^', "") + "^",
            _ => marked.to_owned(),
        };
        refused_in(File::UprobeEvents, &Grammar::default(), &marked, reason);
    }
}
