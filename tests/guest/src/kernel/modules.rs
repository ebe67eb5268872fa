//! Loading and unloading of modules, and their parameters.

use alloc::string::ToString;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use kernel::{
    errno::Errno,
    module::{self, ModuleState},
};

kernel::module! {
    name: tested_module,
    description: "Does what its parameters say",
    params: {
        /// How often it counts.
        times: u32 = 1,
        /// Its parameters.
        word: &str = "default",
        /// Whether its init function fails.
        fail: bool = false,
        /// A number that may be negative.
        shift: i64 = -5,
    },
    init: init,
    exit: exit,
}

static COUNT: AtomicU32 = AtomicU32::new(0);
static EXITS: AtomicU32 = AtomicU32::new(0);

fn init() -> Result<(), Errno> {
    COUNT.fetch_add(params().times, SeqCst);
    if params().fail {
        return Err(Errno::ENOENT);
    }
    Ok(())
}

fn exit() {
    EXITS.fetch_add(1, SeqCst);
}

fn state() -> ModuleState {
    module::list()
        .iter()
        .find(|module| module.name() == "tested_module")
        .expect("it is compiled in")
        .state()
}

/// Loads with `args`, expects a refusal, and returns its number and text.
fn refusal(args: &str) -> (Errno, alloc::string::String) {
    let error = module::load("tested_module", args).expect_err(args);
    assert_eq!(state(), ModuleState::Unloaded, "after {args}");
    (error.errno(), error.to_string())
}

#[guest_test]
fn module_is_loaded_and_unloaded() {
    let (counted, exits) = (COUNT.load(SeqCst), EXITS.load(SeqCst));
    module::load("tested_module", "times=3").unwrap();
    assert_eq!(COUNT.load(SeqCst), counted + 3);
    assert_eq!(state(), ModuleState::Live);
    assert!(
        module::loaded()
            .iter()
            .any(|module| module.name() == "tested_module")
    );
    module::unload("tested_module").unwrap();
    assert_eq!(
        (state(), EXITS.load(SeqCst)),
        (ModuleState::Unloaded, exits + 1)
    );
}

#[guest_test]
fn parameters_take_values_and_their_defaults_again_at_the_next_load() {
    module::load("tested_module", r#"word="two words" shift=0x10 times=010"#).unwrap();
    let given = params();
    assert_eq!(
        (given.word, given.shift, given.times, given.fail),
        ("two words", 16, 8, false)
    );
    module::unload("tested_module").unwrap();
    module::load("tested_module", "").unwrap();
    let given = params();
    assert_eq!(
        (given.word, given.shift, given.times, given.fail),
        ("default", -5, 1, false)
    );
    module::unload("tested_module").unwrap();
}

#[guest_test(cmdline = "tested_module.word=line tested-module.times=2")]
fn parameters_come_from_the_command_line_and_arguments_count_more() {
    module::load("tested_module", "times=7").unwrap();
    assert_eq!((params().word, params().times), ("line", 7));
    module::unload("tested_module").unwrap();
}

#[guest_test]
fn unknown_parameters_and_bad_values_are_refused_and_nothing_runs() {
    let counted = COUNT.load(SeqCst);
    let (errno, text) = refusal("time=3");
    assert_eq!(errno, Errno::EINVAL);
    assert_eq!(
        text,
        "tested_module has no parameter time; it has: times, word, fail, shift"
    );
    assert_eq!(refusal("times=many").0, Errno::EINVAL);
    assert_eq!(
        refusal("times=-1").1,
        "tested_module.times does not take \"-1\"; give a number from 0 to 4294967295"
    );
    assert_eq!(refusal("times").0, Errno::EINVAL);
    assert_eq!(refusal("fail=perhaps").0, Errno::EINVAL);
    assert_eq!(COUNT.load(SeqCst), counted, "init ran");
}

#[guest_test]
fn failing_init_leaves_the_module_unloaded() {
    assert_eq!(refusal("fail"), (Errno::ENOENT, Errno::ENOENT.to_string()));
    assert!(!params().fail, "the parameters have their defaults again");
}

#[guest_test]
fn loading_twice_and_unloading_what_is_not_loaded_are_refused() {
    assert_eq!(
        module::unload("tested_module").unwrap_err().errno(),
        Errno::ENOENT
    );
    module::load("tested_module", "").unwrap();
    let error = module::load("tested_module", "times=9").unwrap_err();
    assert_eq!((error.errno(), error.errno().code()), (Errno::EEXIST, 17));
    assert_eq!(params().times, 1, "the refused load changed nothing");
    module::unload("tested_module").unwrap();
}

#[guest_test]
fn unknown_module_is_refused_with_those_there_are() {
    let error = module::load("no_such_module", "").unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
    let text = error.to_string();
    assert!(
        text.contains("tested_module") && text.contains("kprobe_example"),
        "{text}"
    );
}
