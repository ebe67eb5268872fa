//! Displaced instructions: each does what it does without a probe.
//!
//! Single forms, random ones, rare exceptions, and single steps. `case_runner` executes a case,
//! `case_methods` says how it is probed meanwhile, and `case_outcome` compares what it leaves.
//! `user_fuzz` and `user_runner` are the same for random ones in ring 3.

mod case_methods;
mod case_outcome;
mod case_runner;
mod displaced_instructions;
mod instruction_forms;
mod instruction_fuzz;
mod processor_single_step;
mod rare_exceptions;
mod single_stepped_hits;
mod unusual_instructions;
mod user_fuzz;
mod user_runner;
