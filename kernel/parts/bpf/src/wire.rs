//! The wire form of programs: 8 bytes an instruction, as in BPF objects.
