//! A plugin of QEMU that notes which of some instructions each guest test executes.
//!
//! QEMU loads it by `-plugin FILE,in=INPUT,out=OUTPUT`. The lines of INPUT are addresses in
//! hexadecimal digits. The first one is a mark: when the guest comes there, a test begins. OUTPUT
//! has a line for each instruction that is executed since the last mark, its address, and `begin`
//! and a number of milliseconds for each mark. The last line is `end`, with such a number, too.
//!
//! # Contexts
//! QEMU calls from the threads of the guest's CPUs, of which several may run at the same time.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fs::{self, File},
    io::Write,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

type Id = u64;

/// Instructions that QEMU translates at once.
#[repr(C)]
pub struct Block([u8; 0]);

#[repr(C)]
pub struct Instruction([u8; 0]);

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, callback: extern "C" fn(Id, *mut Block));
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const Block, number: usize) -> *mut Instruction;
    fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_atexit_cb(
        id: Id,
        callback: extern "C" fn(Id, *mut c_void),
        data: *mut c_void,
    );
}

/// The callback reads no registers.
const NO_REGISTERS: c_int = 0;

/// The interface that is used here, as QEMU 7.2 has it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 1;

/// An instruction that is looked for.
struct Sought {
    address: u64,
    /// Since the last mark.
    executed: AtomicBool,
}

struct Output {
    file: File,
    /// When the last mark was passed.
    since: Instant,
}

struct Plugin {
    /// The mark first.
    sought: Vec<Sought>,
    by_address: HashMap<u64, usize>,
    output: Mutex<Output>,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

impl Plugin {
    fn new(options: &[String]) -> Option<Self> {
        let option = |name| options.iter().find_map(|option| option.strip_prefix(name));
        let input = fs::read_to_string(option("in=")?).ok()?;
        let mut sought = Vec::new();
        for line in input.lines() {
            sought.push(Sought {
                address: u64::from_str_radix(line, 16).ok()?,
                executed: AtomicBool::new(false),
            });
        }
        let numbered = sought.iter().enumerate();
        Some(Self {
            by_address: numbered.map(|(at, sought)| (sought.address, at)).collect(),
            sought,
            output: Mutex::new(Output {
                file: File::create(option("out=")?).ok()?,
                since: Instant::now(),
            }),
        })
    }

    /// The guest executes the instruction of this number.
    fn executes(&self, number: usize) {
        if number == 0 {
            for sought in &self.sought {
                sought.executed.store(false, Ordering::Relaxed);
            }
            self.tell_time("begin");
        } else if !self.sought[number].executed.swap(true, Ordering::Relaxed) {
            let address = self.sought[number].address;
            self.tell(|_| format!("{address:x}"));
        }
    }

    fn tell_time(&self, event: &str) {
        self.tell(|output| {
            let time = output.since.elapsed();
            output.since += time;
            format!("{event} {}", time.as_millis())
        });
    }

    fn tell(&self, line: impl FnOnce(&mut Output) -> String) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let line = line(&mut output) + "\n";
        // The reader misses the end of an output that is not whole.
        let _ = output.file.write_all(line.as_bytes());
    }
}

/// Called when QEMU has loaded this plugin.
///
/// # Safety
/// `options` are as many pointers to strings as `count` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    _about: *const c_void,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    let options: Vec<_> = (0..usize::try_from(count).unwrap_or(0))
        .map(|number| {
            // SAFETY: the caller has given so many strings.
            let option = unsafe { CStr::from_ptr(*options.add(number)) };
            option.to_string_lossy().into_owned()
        })
        .collect();
    let Some(plugin) = Plugin::new(&options) else {
        eprintln!("coverage_plugin: in=FILE and out=FILE are wanted, with addresses in the first");
        return -1;
    };
    PLUGIN.get_or_init(|| plugin);
    // SAFETY: both may be called here, and the callbacks are functions for ever.
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        qemu_plugin_register_atexit_cb(id, ends, std::ptr::null_mut());
    }
    0
}

extern "C" fn translated(_: Id, block: *mut Block) {
    let Some(plugin) = PLUGIN.get() else { return };
    // SAFETY: QEMU lends the block and its instructions for the time of this call, and the number
    // of an instruction is below theirs.
    unsafe {
        for number in 0..qemu_plugin_tb_n_insns(block) {
            let instruction = qemu_plugin_tb_get_insn(block, number);
            let address = qemu_plugin_insn_vaddr(instruction);
            if let Some(sought) = plugin.by_address.get(&address) {
                let data = *sought as *mut c_void;
                qemu_plugin_register_vcpu_insn_exec_cb(instruction, executes, NO_REGISTERS, data);
            }
        }
    }
}

extern "C" fn executes(_: c_uint, number: *mut c_void) {
    if let Some(plugin) = PLUGIN.get() {
        plugin.executes(number as usize);
    }
}

extern "C" fn ends(_: Id, _: *mut c_void) {
    if let Some(plugin) = PLUGIN.get() {
        plugin.tell_time("end");
    }
}
