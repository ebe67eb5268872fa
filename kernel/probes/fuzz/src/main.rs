//! Coverage-guided fuzzing of the decoder, the translator and the analysis of regions.
//!
//! libFuzzer looks for inputs that reach new code, in `probes::insn` and in the decoder crate. It
//! stops at the first one that makes [`arbitrary_bytes::examine`] panic. In this directory:
//!
//! ```text
//!   mkdir -p found smaller
//!   cargo run --release -- found corpus -max_len=48     until interrupted; new inputs go to found
//!   cargo run --release -- -merge=1 -set_cover_merge=1 -use_counters=0 smaller corpus found
//! ```
//!
//! The corpus is one file in the repository, `corpus.txt`. The program `fuzz_corpus` unpacks it to
//! `corpus` before, and packs `smaller` after (`corpus.rs` says how).
//!
//! `cargo test -p probes --test insn arbitrary_bytes` replays the corpus that is in the repository.
#![no_main]
#![forbid(unsafe_code)]

#[path = "../../tests/insn/arbitrary_bytes.rs"]
mod arbitrary_bytes;
#[path = "../../tests/insn/symbolic.rs"]
mod symbolic;

libfuzzer_sys::fuzz_target!(|input: &[u8]| arbitrary_bytes::examine(input));
