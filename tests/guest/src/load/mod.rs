//! Everything at once and at random: probes all over the kernel while it works, and operations
//! that are held against a model.

mod stress;
pub mod whole_kernel;
