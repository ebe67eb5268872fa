//! Without memory a line is refused with ENOMEM, whichever allocation fails, and keeps nothing.
//!
//! Each test repeats its work with room for no allocation, for one, for two and so on, until all
//! have room. An allocation that cannot be refused would end the test.

mod common;

use std::{
    alloc::{GlobalAlloc, System},
    cell::Cell,
    ptr::null_mut,
};

use common::{Kernel, LONG};
use tracefs::{
    commands::{MOST_LINE_BYTES, Words},
    compile::{CompileError, EventProgram, Programs},
    definition::{Command, Definition, File},
    fetch::Grammar,
    field::Field,
    filter,
    record::Layout,
    refusal::{Reason, Refusal},
    trigger,
};

thread_local! {
    /// How many more allocations of this thread succeed; None: all.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Blocks and bytes of this thread that are not freed.
    static BLOCKS: Cell<isize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
    /// The most bytes at once.
    static MOST: Cell<isize> = const { Cell::new(0) };
}

struct Failing;

// SAFETY: the system's allocator, or null, which says that there is no memory.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        match LEFT.get() {
            Some(0) => return null_mut(),
            left => LEFT.set(left.map(|left| left - 1)),
        }
        BLOCKS.set(BLOCKS.get() + 1);
        BYTES.set(BYTES.get() + layout.size() as isize);
        MOST.set(MOST.get().max(BYTES.get()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: std::alloc::Layout) {
        BLOCKS.set(BLOCKS.get() - 1);
        BYTES.set(BYTES.get() - layout.size() as isize);
        // SAFETY: the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Reads a line, and lays out the records of what it defines.
fn read(words: &Words<'_>) -> Result<(), Refusal> {
    let command = Command::parse(words, File::DynamicEvents, &Kernel, &Grammar::default())?;
    if let Command::Create(definition) = &command {
        Layout::of(definition)?;
        definition.entry_arguments()?;
    }
    Ok(())
}

/// Reads `line` while its first allocation fails, then its second, and so on. Returns how many
/// there are.
fn each_allocation_fails(line: &str) -> usize {
    let words = Words::of(line).unwrap();
    for number in 0.. {
        let before = BLOCKS.get();
        LEFT.set(Some(number));
        let result = read(&words);
        LEFT.set(None);
        assert_eq!(BLOCKS.get(), before, "{line}: all is given back");
        match result {
            Ok(()) => return number,
            Err(refusal) => {
                assert_eq!(refusal.reason, Reason::OutOfMemory, "{line}: {refusal:?}");
                assert_eq!(refusal.reason.errno(), 12);
            }
        }
    }
    unreachable!("the loop ends by itself")
}

/// Reads a line of a `trigger` file, or of a `filter` file without the `if`, as above.
fn each_allocation_of_a_wish_fails(fields: &[Field], line: &str) -> usize {
    for number in 0.. {
        let before = BLOCKS.get();
        LEFT.set(Some(number));
        let result = match line.strip_prefix("if ") {
            Some(text) => match filter::Request::parse(text, fields, &Kernel) {
                Ok(_) => Ok(()),
                Err(error) => Err(error.errno()),
            },
            None => match trigger::Line::parse(line, fields, &Kernel) {
                Ok(_) => Ok(()),
                Err(error) => Err(error.errno()),
            },
        };
        LEFT.set(None);
        assert_eq!(BLOCKS.get(), before, "{line}: all is given back");
        match result {
            Ok(()) => return number,
            Err(errno) => assert_eq!(errno, 12, "{line}, allocation {number}"),
        }
    }
    unreachable!("the loop ends by itself")
}

#[test]
fn each_allocation_of_a_filter_or_a_trigger_may_fail() {
    let line = "p vfs_read own=%di:u64 text=+0(%si):string";
    let words = Words::of(line).unwrap();
    let command = Command::parse(&words, File::DynamicEvents, &Kernel, &Grammar::default());
    let Ok(Command::Create(definition)) = command else {
        panic!("a definition")
    };
    let fields = Layout::of(&definition).unwrap().fields;
    for (line, least) in [
        ("if own == 1", 4),
        (
            "if comm ~ \"a*\" && !(text != 'x' || !(own & 8 && CPU < 2))",
            14,
        ),
        (
            "if ((own == 1 || own == 2) || own == 3) && (own < 4 && own > 5)",
            9,
        ),
        ("if own.function == vfs_read", 3),
        ("traceoff:3 if own == 1", 4),
        ("enable_event:group:event:2", 2),
        ("snapshot if common_pid != 0", 2),
        (
            "hist:keys=own.buckets=10,text:vals=own:sort=own.buckets=10.descending:name=n",
            9,
        ),
        ("hist:keys=text:sort=hitcount if own > 1", 6),
    ] {
        let allocations = each_allocation_of_a_wish_fails(&fields, line);
        assert!(allocations >= least, "{line}: {allocations}");
    }
}

/// Compiles `definition` with a filter or a trigger, as above.
fn each_allocation_of_a_program_fails(definition: &Definition, line: &str) -> usize {
    let fields = Layout::of(definition).unwrap().fields;
    let filter =
        line.strip_prefix("if ").map(
            |text| match filter::Request::parse(text, &fields, &Kernel) {
                Ok(filter::Request::Set(filter)) => filter,
                other => panic!("{line}: {other:?}"),
            },
        );
    let trigger = (filter.is_none()).then(|| trigger::Line::parse(line, &fields, &Kernel).unwrap());
    let compile = || -> Result<Programs, CompileError> {
        let mut program = EventProgram::new(definition, 7, &Kernel)?;
        if let Some(trigger::Line { trigger, .. }) = &trigger {
            match &trigger.action {
                trigger::Action::Hist(hist) => program.count(hist, "hist1")?,
                action => panic!("{action:?}"),
            }
        }
        program.record(filter.as_ref())?;
        program.finish()
    };
    for number in 0.. {
        let before = BLOCKS.get();
        LEFT.set(Some(number));
        let result = compile();
        LEFT.set(None);
        match result {
            Ok(programs) => {
                for program in [Some(programs.hit), programs.entry].into_iter().flatten() {
                    bpf::verifier::verify(program).unwrap();
                }
                return number;
            }
            Err(error) => assert!(error.is_out_of_memory(), "{line}, {number}: {error}"),
        }
        assert_eq!(BLOCKS.get(), before, "{line}: all is given back");
    }
    unreachable!("the loop ends by itself")
}

#[test]
fn each_allocation_of_the_program_of_a_filter_or_a_trigger_may_fail() {
    let line = "p vfs_read own=%di:u64 text=+0(%si):string tag=\\\"constant\" task=$comm";
    let words = Words::of(line).unwrap();
    let command = Command::parse(&words, File::DynamicEvents, &Kernel, &Grammar::default());
    let Ok(Command::Create(definition)) = command else {
        panic!("a definition")
    };
    for (line, least) in [
        ("if own == 1", 8),
        // A label that waits.
        ("if (own == 1 && own < 4) || own == 3", 9),
        ("if tag == \"constant\" && own < 4", 9),
        // A pattern that is made longer, one that is not, and one that is searched.
        ("if text == 'a name'", 9),
        ("if text ~ \"a*\"", 8),
        ("if text ~ \"*a*b?c*\" && comm ~ \"*d\"", 16),
        ("hist:keys=own", 12),
        ("hist:keys=tag,task,own.buckets=10:vals=own:sort=own", 12),
        ("hist:keys=common_stacktrace", 12),
        ("hist:keys=own.log2", 12),
        (
            "hist:keys=common_pid.execname if own > 1 && text ~ '*x*'",
            14,
        ),
    ] {
        let allocations = each_allocation_of_a_program_fails(&definition, line);
        assert!(allocations >= least, "{line}: {allocations}");
    }
}

/// A line with as many arguments as there may be, and with a name and a fetch as long.
fn longest() -> String {
    let mut line = "r:group/name vfs_read".to_owned();
    for number in 0..127 {
        let argument = format!(" a{number}=+{}(+8($arg{}))", number * 8, number % 6 + 1);
        line += &argument;
    }
    line += &format!(" {}=+0x{}8(%ax)", "n".repeat(32), "0".repeat(240));
    assert!(line.len() <= MOST_LINE_BYTES);
    line
}

#[test]
fn each_allocation_of_a_line_may_fail() {
    for (line, least) in [
        ("p vfs_read", 4),
        ("p:group/name vfs_read+8 %di $comm", 10),
        ("r7:name vfs_read r=$retval $arg3 s=+0($arg1):string", 12),
        (
            "p vfs_read a=+8(+u16(%si)):u8[4] \\\"text\" b=@vfs_read+8:x32",
            14,
        ),
        ("p vfs_read name=$arg1:%pD", 6),
        // Its automatic name has to be cut.
        (&format!("p {LONG}"), 5),
        ("-:group/name vfs_read a=%di %si", 8),
        ("!p:group/name", 2),
        (&longest(), 512),
    ] {
        let allocations = each_allocation_fails(line);
        assert!(allocations >= least, "{line}: {allocations}");
    }
}

/// A line is bounded, and so is what it takes.
#[test]
fn longest_line_takes_less_than_this() {
    let line = longest();
    let words = Words::of(&line).unwrap();
    let before = BYTES.get();
    MOST.set(before);
    read(&words).unwrap();
    let most = MOST.get() - before;
    assert!(most < 64 << 10, "{most} bytes");
}
