//! Checks of the linked kernel: its text, instruction by instruction, and its data.
//!
//! Handlers run in the middle of any code, on its stack and with its registers. So nothing may be
//! alive below the stack pointer, or in registers that a hit does not save.

// Its instructions, held against a disassembler's and translated one by one.
#[path = "../kernel/probes/tests/insn/own_text.rs"]
mod own_text;

use std::{
    collections::{HashMap, HashSet},
    fs,
    ops::Range,
    path::PathBuf,
    thread,
};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use object::{
    Object, ObjectSection, ObjectSymbol, SymbolKind,
    read::elf::{ElfFile64, ElfSymbol64},
};
use tests::built;
use unwind::{
    Frame, Memory, Section, Tables,
    fast::{FastTable, Found, Walker},
    register,
};

/// The program that [`own_text`] reads.
fn subject() -> PathBuf {
    built::kernel().elf.clone()
}

/// The address table alone would be 16 MiB, and a boot loader takes seconds for a megabyte. The
/// data of the CPUs is in the file, a page for each of 64, because not all of it is zero.
#[test]
fn statics_that_are_zero_take_no_room_in_the_file() {
    let kernel = built::kernel();
    let bytes = fs::read(&kernel.elf).unwrap();
    let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let data = file.section_by_name(".data").unwrap().size();
    assert!(data < 288 << 10, "{data} bytes");
}

/// A probe on such padding would never be hit, so it would have to be refused by its symbol.
#[test]
fn no_symbol_stands_for_padding_in_front_of_a_function() {
    let kernel = built::kernel();
    let bytes = fs::read(&kernel.elf).unwrap();
    let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let names: Vec<_> = file
        .symbols()
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert!(names.contains(&"do_page_fault"), "{} symbols", names.len());
    let padding = |name: &&&str| name.starts_with("__pfx_") || name.starts_with("__cfi_");
    let padding: Vec<_> = names.iter().filter(padding).collect();
    assert!(padding.is_empty(), "{padding:?}");
}

/// Functions of the same code that are written in assembly, which stays as it is.
const IN_ASSEMBLY: [&str; 11] = [
    "kretprobe_trampoline_trap3",
    "kretprobe_trampoline_trap4",
    "copy_user",
    "trace_copy",
    "probes_self_test_load",
    "blacklisted",
    "tail_nothing",
    "just_return",
    "opt_before_another",
    "opt_before_padding",
    "opt_before_page",
];

/// The compiler makes one function of two with the same body, where both happen to be in the same
/// piece of the program that it compiles. A probe at one would see calls of the other, so functions
/// that are to be probed by plain names differ: those of the kernel, and those that its tests
/// probe.
#[test]
fn functions_with_plain_names_have_code_of_their_own() {
    for kernel in [built::kernel(), built::testkernel()] {
        let bytes = fs::read(&kernel.elf).unwrap();
        let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
        let mut by_code: HashMap<Vec<Instruction>, Vec<&str>> = HashMap::new();
        let mut count = 0;
        for symbol in file
            .symbols()
            .filter(|symbol| symbol.is_global() && symbol.size() > 0)
            .filter(|symbol| symbol.kind() == SymbolKind::Text)
        {
            let name = symbol.name().unwrap();
            if !name.starts_with("_ZN") && !name.starts_with("_R") {
                count += 1;
                by_code
                    .entry(code_wherever_it_is(&file, &symbol))
                    .or_default()
                    .push(name);
            }
        }
        assert!(count > 100, "{count} functions");
        let same: Vec<_> = by_code
            .into_values()
            .map(|mut names| {
                names.retain(|name| !IN_ASSEMBLY.contains(name));
                names
            })
            .filter(|names| names.len() > 1)
            .collect();
        assert!(same.is_empty(), "{same:?}");
    }
}

/// The instructions of a function, if they are in the file.
fn instructions_of<'f>(file: &ElfFile64<'f>, symbol: &ElfSymbol64) -> Option<Decoder<'f>> {
    let section = symbol.section_index().expect("functions lie in sections");
    let section = file.section_by_index(section).unwrap();
    let text = section.data_range(symbol.address(), symbol.size()).ok()??;
    let options = DecoderOptions::NONE;
    Some(Decoder::with_ip(64, text, symbol.address(), options))
}

/// The instructions of a function, equal for two functions with the same body: branches inside it
/// lead to offsets, and other operands to addresses. Instructions that are compared leave out where
/// they are themselves.
fn code_wherever_it_is(file: &ElfFile64, symbol: &ElfSymbol64) -> Vec<Instruction> {
    let own = symbol.address()..symbol.address() + symbol.size();
    let mut all: Vec<_> = instructions_of(file, symbol).unwrap().into_iter().collect();
    for instruction in &mut all {
        if instruction.op0_kind() == OpKind::NearBranch64
            && own.contains(&instruction.near_branch64())
        {
            instruction.set_near_branch64(instruction.near_branch64() - own.start);
        }
    }
    all
}

/// All instructions of all functions, each with the name of its function.
fn instructions() -> Vec<(String, Instruction)> {
    let kernel = built::kernel();
    let bytes = fs::read(&kernel.elf).unwrap();
    let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let mut all = Vec::new();
    for symbol in file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
    {
        let Some(function) = instructions_of(&file, &symbol) else {
            continue;
        };
        let name = symbol.name().unwrap().to_owned();
        all.extend(
            function
                .into_iter()
                .map(|instruction| (name.clone(), instruction)),
        );
    }
    assert!(all.len() > 50_000, "{} instructions", all.len());
    all
}

fn show((name, instruction): &(String, Instruction)) -> String {
    format!(
        "{:#x} in {name}: {:?}",
        instruction.ip(),
        instruction.code()
    )
}

#[test]
fn nothing_lives_below_the_stack_pointer_or_in_vector_registers() {
    let all = instructions();
    let red_zone = all.iter().filter(|(_, instruction)| {
        let accesses =
            (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory);
        accesses
            && instruction.memory_base() == Register::RSP
            && (instruction.memory_displacement64() as i64) < 0
            // Computes an address only.
            && instruction.mnemonic() != Mnemonic::Lea
    });
    let red_zone: Vec<_> = red_zone.map(show).collect();
    assert!(red_zone.is_empty(), "{red_zone:#?}");

    let vectors = all.iter().filter(|(_, instruction)| {
        (0..instruction.op_count()).any(|n| {
            let register = instruction.op_register(n);
            register.is_vector_register() || register.is_st() || register.is_mm()
        }) || instruction.is_save_restore_instruction()
    });
    let vectors: Vec<_> = vectors.map(show).collect();
    assert!(vectors.is_empty(), "{vectors:#?}");
}

/// A stack whose words all differ: each tells its address.
struct Words(Range<u64>);

impl Words {
    fn word(&self, address: u64) -> u64 {
        assert!(
            self.0.contains(&address) && address.is_multiple_of(8),
            "reads {address:#x}"
        );
        Self::address(address)
    }

    /// The address of a word, and the word at an address.
    fn address(word: u64) -> u64 {
        word ^ 0x5a5a_0000_0000_5a5a
    }
}

impl Memory for Words {
    fn read(&self, address: u64) -> Option<u64> {
        // The exact step reads the other saved registers, too.
        self.0.contains(&address).then(|| self.word(address))
    }
}

/// At each address of the kernel the fast step is that of the call frame information, or none.
#[test]
fn the_table_for_fast_walks_agrees_with_the_call_frame_information() {
    let kernel = built::kernel();
    let bytes = fs::read(&kernel.elf).unwrap();
    let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let section = |name| {
        let section = file.section_by_name(name).expect(name);
        Section {
            address: section.address(),
            bytes: section.data().unwrap(),
        }
    };
    let text = [".init.text", ".text"].map(|name| {
        let section = file.section_by_name(name).expect(name);
        section.address()..section.address() + section.size()
    });
    let is_text = |address: u64| text.iter().any(|range| range.contains(&address));
    let tables = Tables::new(
        section(".eh_frame_hdr"),
        section(".eh_frame"),
        section(".debug_frame").bytes,
        is_text,
    );
    let borrowed = file.symbol_by_name("kretprobe_trampoline").unwrap();
    let table = FastTable::new(&tables, is_text, &[borrowed.address()]).unwrap();
    assert!(!table.describes(borrowed.address() - 1));

    const BOTTOM: u64 = 0xffff_ff90_0000_8000;
    const END: u64 = BOTTOM + 0x8000;
    let stack = Words(BOTTOM..END);
    // For the addresses of a half: how many the table describes, all, found interruptions, steps to
    // usual callers, and steps from entries.
    let half = |first| {
        let (mut described, mut all, mut interruptions, mut usual) = (0, 0, 0, 0);
        let mut entries = 0;
        for address in text
            .iter()
            .flat_map(|text| text.clone().skip(first).step_by(2))
        {
            if !tables.describes(address) {
                assert!(!table.describes(address), "{address:#x}");
                continue;
            }
            all += 1;
            described += u64::from(table.describes(address));
            // With the frame pointer's frame above, and at the stack pointer.
            for (interrupted, bp) in [(true, 64), (true, 8), (false, 64), (false, 2048)] {
                let mut registers = [0; register::COUNT];
                registers[register::IP] = address + u64::from(!interrupted);
                registers[register::SP] = BOTTOM + 256;
                registers[register::BP] = BOTTOM + 256 + bp;
                let frame = Frame {
                    registers,
                    interrupted,
                };
                let mut walker = Walker {
                    ip: frame.ip(),
                    sp: frame.sp(),
                    bp: registers[register::BP],
                    interrupted,
                };
                let lowest = frame.sp();
                let read = |address| {
                    assert!(address >= lowest);
                    stack.word(address)
                };
                let before = walker;
                let mut climber = before;
                let found = walker.step(&table, END, read);
                if !interrupted {
                    let mut is_usual = false;
                    climber.climb(&table, END, read, |_| {
                        is_usual = true;
                        false
                    });
                    assert!(!is_usual || climber == walker, "{address:#x}: {climber:x?}");
                    usual += u64::from(is_usual);
                }
                let mut leaver = before;
                if leaver.leave_entry(&table, END, read) {
                    assert_eq!(leaver, walker, "{address:#x}");
                    entries += 1;
                    // The return address is the last word of the stack, or lies beyond it.
                    for (end, is_left) in [(lowest + 8, true), (lowest + 7, false), (0, false)] {
                        let mut leaver = before;
                        assert_eq!(leaver.leave_entry(&table, end, read), is_left);
                        assert_eq!(leaver == before, !is_left);
                    }
                } else {
                    assert_eq!(leaver, before, "{address:#x}");
                }
                if found == Found::Nothing {
                    continue;
                }
                interruptions += u64::from(found == Found::Interrupted);
                let exact = tables.step(&frame, &stack);
                let exact =
                    exact.unwrap_or_else(|stop| panic!("{address:#x}: {stop:?}, not {walker:x?}"));
                assert_eq!(
                    (walker.ip, walker.sp, walker.interrupted),
                    (exact.ip(), exact.sp(), exact.interrupted),
                    "{address:#x}, interrupted: {interrupted}, rbp + {bp}"
                );
                // After a pop, compilers still say that the register is on the stack. No function
                // that waits for a call is there, so the exact step believes it then.
                let exact_bp = exact.registers[register::BP];
                let is_popped =
                    !interrupted && (BOTTOM..lowest).contains(&Words::address(exact_bp));
                if !is_popped {
                    assert_eq!(
                        walker.bp, exact_bp,
                        "{address:#x}, interrupted: {interrupted}, rbp + {bp}"
                    );
                }
            }
        }
        [described, all, interruptions, usual, entries]
    };
    let [described, all, interruptions, usual, entries] = thread::scope(|scope| {
        let even = scope.spawn(|| half(0));
        let odd = half(1);
        let even = even.join().expect("the even addresses fail, see above");
        core::array::from_fn(|n| even[n] + odd[n])
    });
    println!(
        "{described} of {all} bytes of text, {} bytes of table",
        table.bytes()
    );
    assert!(interruptions > 0);
    assert!(usual > all / 2, "{usual} of {all} bytes");
    let functions: HashSet<u64> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .map(|symbol| symbol.address())
        .collect();
    // Each was left with two frame pointers. A few have frames like none else, or begin elsewhere.
    let functions = functions.len() as u64;
    assert!(entries * 10 > functions * 2 * 9, "{entries} of {functions}");
    assert!(described * 100 > all * 98, "{described} of {all} bytes");
}

/// A detour at the entry of a function leaves AC as it finds it, so no function may be entered with
/// AC set: between `stac` and `clac` nothing is called, and nothing is left.
#[test]
fn no_function_is_entered_while_user_memory_is_open() {
    let mut all = instructions();
    all.sort_by_key(|(_, instruction)| instruction.ip());
    all.dedup_by_key(|(_, instruction)| instruction.ip());
    let opens = |(_, instruction): &(String, Instruction)| instruction.mnemonic() == Mnemonic::Stac;
    let mut opened = 0;
    for (at, _) in all.iter().enumerate().filter(|(_, each)| opens(each)) {
        opened += 1;
        let open = all[at..]
            .iter()
            .take_while(|(_, instruction)| instruction.mnemonic() != Mnemonic::Clac);
        let leave = open.filter(|(_, instruction)| {
            !matches!(
                instruction.flow_control(),
                FlowControl::Next
                    | FlowControl::ConditionalBranch
                    | FlowControl::UnconditionalBranch
            )
        });
        let leave: Vec<_> = leave.map(show).collect();
        assert!(leave.is_empty(), "behind {}: {leave:#?}", show(&all[at]));
    }
    assert!(opened > 0, "nothing opens user memory");
}
