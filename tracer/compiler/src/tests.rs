//! Programs against a kernel that is made up: compiled, verified, run by the interpreter, shown.

mod arithmetic;
mod blocks;
mod composites;
mod fake;
mod functions;
mod fuzz;
mod library;
mod loops;
mod macros;
mod maps;
mod messages;
mod named;
mod once;
mod pointers;
mod portable;
mod rendering;
mod series;
mod settings;
mod typeinfo;
mod types_of;
mod user;
mod values;
mod whole;
mod words;
mod world;
