//! Settings: those that are obeyed, those that change nothing, and those that are refused.

use super::{
    fake::{Fake, compiled_with},
    world::World,
};
use crate::Options;

fn refusal(settings: &str) -> Option<String> {
    let text = format!("config = {{ {settings} }} begin {{ @ = 1; }}");
    compiled_with(&text, &Fake::new(), &Options::default()).err()
}

#[test]
fn a_setting_is_obeyed() {
    let mut world =
        World::new("config = { print_maps_on_exit = false } begin { @m = 1; print(2); }");
    world.tick();
    assert_eq!(world.maps(), "2\n");
    let mut world = World::new("config = { BPFTRACE_PRINT_MAPS_ON_EXIT=1; } begin { @m = 1; }");
    world.tick();
    assert_eq!(world.maps(), "@m: 1\n");
    let text = "config = { stack_mode = raw } kprobe:vfs_write { print(kstack(1)); }";
    let mut world = World::new(text);
    world.hit(&Default::default());
    assert_eq!(world.out.trim(), "ffff800000001001");
    let world = World::new("config = { max_map_keys = 7; } begin { @m[1] = 1; }");
    let map = world
        .script
        .maps
        .iter()
        .find(|map| map.name == "@m")
        .unwrap();
    assert_eq!(map.entries, 7);
}

#[test]
fn a_probe_that_is_missing_is_left_out_if_that_is_wanted() {
    let compiled = |word: &str, others: &str| {
        let text =
            format!("config = {{ missing_probes={word} }} kprobe:no_such {{ @ = 1; }} {others}");
        compiled_with(&text, &Fake::new(), &Options::default())
    };
    let begin = "begin { @ = 2; }";
    let told = compiled("warn", begin).unwrap();
    assert_eq!(told.missing.len(), 1);
    assert!(
        told.missing[0].message.contains("`no_such`"),
        "{:?}",
        told.missing
    );
    assert_eq!(told.script.attachments.len(), 1);
    assert!(compiled("ignore", begin).unwrap().missing.is_empty());
    for (word, others) in [("error", begin), ("ignore", ""), ("warn", "")] {
        let refused = compiled(word, others).err().unwrap();
        assert!(
            refused.contains("no function of the kernel is called `no_such`"),
            "{refused}"
        );
    }
}

#[test]
fn maps_of_a_clause_that_is_left_out_stay_empty() {
    let left_out = "kprobe:no_such { @at[tid] = nsecs; @n++; if (1) { @h[comm] = hist(1); } }";
    let others = "interval:s:1 { @seen = 1; if (@at[tid]) { print(@at[tid]); delete(@at, tid); } \
                  for ($kv : @h) { print($kv.0); } print(@h); clear(@n); print(len(@at)); }";
    let text = format!("config = {{ missing_probes=warn }} {left_out} {others}");
    let mut world = World::new(&text);
    world.tick();
    assert_eq!(world.maps(), "0\n@seen: 1\n");
    // Another map is a mistake of the text all the same.
    let text =
        format!("config = {{ missing_probes=warn }} {left_out} interval:s:1 {{ print(@hh); }}");
    let refused = compiled_with(&text, &Fake::new(), &Options::default());
    assert!(refused.is_err_and(|told| told.contains("`@hh` is used, but nothing")));
}

#[test]
fn settings_of_how_bpftrace_works_change_nothing() {
    for setting in [
        "log_size = 150",
        "cache_user_symbols = \"PER_PROGRAM\"; on_stack_limit=0",
        "license = \"GPL v2\"; cpp_demangle = false",
        "symbol_source = \"any\"",
    ] {
        assert_eq!(refusal(setting), None, "{setting}");
    }
}

#[test]
fn wrong_settings_are_refused() {
    for (setting, says) in [
        ("max_map_kyes = 1", "did you mean `max_map_keys`"),
        ("kernel_build = 1", "there is no setting `kernel_build`"),
        ("max_probes = \"hello\"", "`max_probes` cannot be `hello`"),
        ("max_map_keys = 0", "it is at least 1"),
        ("print_maps_on_exit = maybe", "it is true or false"),
        ("missing_probes = never", "it is error, warn, ignore"),
        ("license = \"mine\"", "it is GPL"),
        ("str_trunc_trailer = \"..\"", "get no trailer here"),
        ("max_map_keys 1", "expected `=`"),
        (
            "max_map_keys = {",
            "a setting is a number, a word or a text",
        ),
    ] {
        let refusal = refusal(setting).unwrap_or_else(|| panic!("{setting} is taken"));
        assert!(refusal.contains(says), "{setting}: {refusal}");
    }
    let late = "begin { } config = { max_map_keys = 1 } end { }";
    let refused = compiled_with(late, &Fake::new(), &Options::default());
    assert!(refused.is_err_and(|refusal| refusal.contains("do not stand first")));
}
