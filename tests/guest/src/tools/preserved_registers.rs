//! The registers that a called function leaves as they were (System V ABI), for functions in
//! assembly.

/// Pushes all six of them.
macro_rules! push_preserved {
    () => {
        "push rbx; push rbp; push r12; push r13; push r14; push r15"
    };
}

/// Takes them back.
macro_rules! pop_preserved {
    () => {
        "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx"
    };
}
pub(crate) use {pop_preserved, push_preserved};
