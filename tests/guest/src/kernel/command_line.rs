//! The command line, as the host hands it to the kernel.

use kernel::cmdline;

/// Commas separate the options of QEMU too; they must come through.
#[guest_test(cmdline = "greeting=hello,,world list=a,b,c")]
fn command_line_arrives_with_its_commas() {
    assert_eq!(cmdline::get("greeting"), Some("hello,,world"));
    assert_eq!(cmdline::get("list"), Some("a,b,c"));
}
