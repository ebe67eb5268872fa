//! The changed functions: the assembly of the probes and of the kernel's entry, and the glue
//! between the two.

/// Functions that belong together, and the guest tests that should notice mistakes in them.
pub struct Part {
    pub name: &'static str,
    /// Beginnings of the functions' names.
    pub functions: &'static [&'static str],
    /// Beginnings of the tests' names.
    pub tests: &'static [&'static str],
}

/// See the module's text.
pub const PARTS: [Part; 15] = [
    Part {
        name: "breakpoint",
        functions: &[
            "kprobe_breakpoint",
            "kprobe_hit",
            "kprobe_any_hit",
            "kprobe_one_kretprobe",
            "kprobe_kretprobes",
            "kprobe_run_posts",
            "kprobe_post_stub",
        ],
        tests: &[
            "calls::",
            "registration_errors::",
            "handlers::",
            "hits::",
            "between_instructions::",
            "disturbed_hits::",
            "unusual_instructions::",
        ],
    },
    Part {
        name: "handlers",
        functions: &[
            "kprobe_handle_",
            "kretprobe_handle",
            "kretprobe_give_back",
            "kretprobe_decline",
            "jprobe_",
        ],
        tests: &[
            "calls::",
            "concurrency::",
            "registration_errors::",
            "handlers::",
            "handler_rules::",
            "hits::",
        ],
    },
    Part {
        name: "trampoline",
        functions: &["kretprobe_trampoline"],
        tests: &[
            "backtraces::",
            "calls::",
            "concurrency::",
            "debugger::",
            "handlers::",
            "historic::",
        ],
    },
    Part {
        name: "detour",
        functions: &["kprobe_detour", "kretprobe_detour"],
        tests: &[
            "backtraces::",
            "calls::",
            "debugger::",
            "handlers::",
            "hits::",
            "optimization::",
        ],
    },
    Part {
        name: "historic",
        functions: &["probes::registry::historic::"],
        tests: &["calls::", "historic::", "regressions::"],
    },
    Part {
        name: "entry",
        functions: &[
            "asm_breakpoint",
            "asm_debug",
            "asm_page_fault",
            "asm_nmi",
            "asm_syscall",
            "exception_common",
            "exception_return",
            "interrupt_common",
            "ret_from_fork",
        ],
        tests: &[
            "acceptance::",
            "hits::",
            "interrupts_and_nmis::",
            "protection::",
            "between_instructions::",
            "programs::",
            "tasks::",
            "disturbed_hits::",
        ],
    },
    Part {
        name: "text poke",
        functions: &["kernel::probes::text_poke::"],
        tests: &[
            "concurrency::",
            "hits::",
            "interrupts_and_nmis::",
            "protection::",
            "optimization::",
            "stores_to_text::",
        ],
    },
    Part {
        name: "scheduler",
        functions: &["kernel::task::scheduler::", "__switch_to"],
        tests: &[
            "concurrency::",
            "handler_rules::",
            "interrupts_and_nmis::",
            "protection::",
            "programs::",
            "tasks::",
            "disturbed_hits::",
        ],
    },
    Part {
        name: "fault rewind",
        functions: &[
            "do_page_fault",
            "kernel::arch::x86_64::traps::enter_exception",
            "kernel::arch::x86_64::traps::enter_page_fault",
            "kernel::mm::fault::",
        ],
        tests: &[
            "handlers::",
            "instruction_forms::",
            "interrupts_and_nmis::",
            "protection::",
            "programs::",
            "regressions::",
            "disturbed_hits::",
        ],
    },
    Part {
        name: "preempt at breakpoint",
        functions: &[
            "preempt_before_hit",
            "preemptible_breakpoint",
            "kernel::probes::preempt_at_breakpoint::",
        ],
        tests: &[
            "concurrency::",
            "debugger::",
            "interrupts_and_nmis::",
            "protection::",
            "disturbed_hits::",
        ],
    },
    Part {
        name: "user access",
        functions: &["copy_user", "kernel::mm::uaccess::"],
        tests: &[
            "handlers::",
            "interrupts_and_nmis::",
            "protection::",
            "programs::",
            "regressions::",
        ],
    },
    Part {
        name: "backtrace",
        functions: &["kernel::backtrace::", "<kernel::backtrace::"],
        tests: &["backtraces::", "calls::", "kallsyms::"],
    },
    Part {
        name: "platform",
        functions: &[
            "kernel::probes::blacklist::",
            "<kernel::probes::platform::Kernel as probes::platform::Platform>::",
        ],
        tests: &[
            "blacklist::",
            "calls::",
            "concurrency::",
            "registration_errors::",
            "hits::",
            "disturbed_hits::",
        ],
    },
    Part {
        name: "files",
        functions: &["kernel::probes::debugfs::", "<kernel::probes::debugfs::"],
        tests: &["probe_files::"],
    },
    Part {
        name: "handler rules",
        functions: &[
            "kernel::probes::handler_rules::",
            "kernel::probes::running_handler::",
            "<kernel::probes::running_handler::",
        ],
        tests: &["handler_rules::", "handlers::", "printk::"],
    },
];
