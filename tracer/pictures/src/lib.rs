//! Draws traces.
//!
//! ```text
//!   records ─ Builder ─► Timeline ─┬─► text::tree          a call tree for the terminal
//!                                  ├─► perfetto::write     a file for the Perfetto UI
//!                  Stacks ─────────┼─► flame::svg          a flame graph
//!                  Histogram, HeatMap, Books ─► html::page one page with all of it
//! ```
//!
//! PICTURES-1. The same model gives the same bytes. No clock, no random number and no order of a
//!     hash table shows in them.
//! PICTURES-2. No picture needs the network or another file.
//! PICTURES-3. Names and values may hold any text. Each writer escapes it for its form.
//!
//! # Contexts
//! The host. Nothing here is aware of how the records were made.

#![forbid(unsafe_code)]

mod builder;
mod escape;
pub mod file;
pub mod flame;
pub mod html;
pub mod model;
pub mod names;
pub mod perfetto;
mod protobuf;
pub mod text;
pub mod units;

pub use builder::Builder;
pub use model::Timeline;
