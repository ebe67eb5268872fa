//! Texts and copies of memory, in records and in buffers.
//!
//! A text ends at its NUL, at the end of its room, or where memory ends. Each case says what is in
//! the buffer or record afterwards, to the last byte.

use super::*;

#[test]
fn an_event_has_a_header_and_texts_behind_it() {
    let event = probe(&[MapDef::ring("ring")], |b| {
        reserve_event(b, 24, 11);
        b.mov(R7, R0);
        b.store(R10, -8, Size::B8, 0x0201);
        // 4 bytes; then the 7 that are left take part of 9; then nothing.
        for (offset, address) in [(8, KERNEL), (12, KERNEL + 8), (16, KERNEL)] {
            b.mov(R1, R7)
                .set(R2, address as i64)
                .mov(R3, 100)
                .call(Helper::AppendStr)
                .store(R7, offset, Size::B4, R0);
        }
        b.mov(R1, R7)
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -8)
            .mov(R3, 2)
            .call(Helper::AppendBytes)
            .store(R7, 20, Size::B4, R0)
            .submit(R7)
            .exit(0);
    });
    let mut machine = TestMachine::new(&event);
    machine.put(Space::Kernel, KERNEL, b"abc\0\0\0\0\0sequence\0");
    machine.pid_tgid = 0x5_0000_0006;
    machine.event_flags = 3;
    machine.preempt_count = 4;
    assert_eq!(run(&event, &mut machine, LIMIT), Ok(0));
    let bytes = &machine.published[0].bytes;
    assert_eq!(bytes[..8], [77, 0, 3, 4, 6, 0, 0, 0]);
    let place = |offset: usize| u32::from_le_bytes(*bytes[offset..].first_chunk().unwrap());
    assert_eq!(place(8), 24 | 4 << 16);
    assert_eq!(place(12), 28 | 7 << 16);
    assert_eq!((place(16), place(20)), (35, 35));
    assert_eq!(&bytes[24..], b"abc\0sequen\0");
    // The program itself does not see what is past its part.
    let behind = probe(&[MapDef::ring("ring")], |b| {
        reserve_event(b, 24, 8);
        b.store(R0, 20, Size::B8, 0).exit(0);
    });
    assert!(matches!(
        refused(&behind),
        Reason::Outside {
            start: 20,
            size: 24,
            ..
        }
    ));
}

#[test]
fn a_text_that_cannot_be_read_is_said_to_be_so() {
    let append = |room, address: u64, length, helper| {
        let event = probe(&[MapDef::ring("ring")], |b| {
            reserve_event(b, 12, room);
            b.mov(R7, R0)
                .mov(R1, R7)
                .set(R2, address as i64)
                .mov(R3, length)
                .call(helper)
                .store(R7, 8, Size::B4, R0)
                .submit(R7)
                .exit(0);
        });
        let mut machine = TestMachine::new(&event);
        machine.put(Space::Kernel, KERNEL, b"text");
        machine.put(Space::User, 0x1000, b"user\0");
        assert_eq!(run(&event, &mut machine, LIMIT), Ok(0));
        machine.published.remove(0).bytes.split_off(8)
    };
    let behind = |length: u8, text: &[u8]| {
        let place = [12, 0, length, 0];
        [&place[..], text].concat()
    };
    // No NUL in front of the end of the memory; nothing there; no length; little room.
    let append_str = Helper::AppendStr;
    assert_eq!(append(16, KERNEL, 16, append_str), behind(0, b""));
    assert_eq!(append(16, 0, 16, append_str), behind(0, b""));
    assert_eq!(append(16, KERNEL, 0, append_str), behind(0, b""));
    assert_eq!(append(4, 0, 16, append_str), behind(0, b""));
    // Room for the NUL only: nothing is read.
    assert_eq!(append(1, 0, 16, append_str), behind(1, b"\0"));
    assert_eq!(append(4, KERNEL, 16, append_str), behind(4, b"tex\0"));
    assert_eq!(append(0, KERNEL, 16, append_str), behind(0, b""));
    assert_eq!(append(0, 0, 0, append_str), behind(0, b""));
    // Shortened by the length in front of the end of the memory.
    assert_eq!(append(16, KERNEL, 5, append_str), behind(5, b"text\0"));
    assert_eq!(append(16, KERNEL, 3, append_str), behind(3, b"te\0"));
    // The other space.
    let append_user = Helper::AppendUserStr;
    assert_eq!(append(16, 0x1000, 16, append_user), behind(5, b"user\0"));
    assert_eq!(append(16, KERNEL, 16, append_user), behind(0, b""));
}

#[test]
fn an_event_is_at_most_as_long_as_a_record() {
    let event = probe(&[MapDef::ring("ring")], |b| {
        reserve_event(b, 3070, 5);
        b.mov(R7, R0)
            .mov(R1, R0)
            .mov(R2, R10)
            .store(R10, -8, Size::B8, -1)
            .alu(AluOp::Add, R2, -8)
            .mov(R3, 8)
            .call(Helper::AppendBytes)
            .mov(R8, R0)
            .submit(R7)
            .mov(R0, R8)
            .push(Insn::Exit);
    });
    let mut machine = TestMachine::new(&event);
    assert_eq!(run(&event, &mut machine, LIMIT), Ok(3070 | 2 << 16));
    assert_eq!(machine.published[0].bytes.len(), 3072);
}

#[test]
fn lengths_of_texts_count_the_nul() {
    let length = |helper, address: u64, most: i64| {
        let program = probe(&[], |b| {
            b.set(R1, address as i64)
                .set(R2, most)
                .call(helper)
                .push(Insn::Exit);
        });
        let mut machine = TestMachine::new(&program);
        machine.put(Space::Kernel, KERNEL, b"text\0");
        machine.put(Space::Kernel, KERNEL + 8, &[b'x'; 4000]);
        machine.put(Space::User, 0x1000, b"user memory\0");
        run(&program, &mut machine, LIMIT).unwrap()
    };
    assert_eq!(length(Helper::StrLen, KERNEL, 100), 5);
    assert_eq!(length(Helper::StrLen, KERNEL, 5), 5);
    assert_eq!(length(Helper::StrLen, KERNEL, 4), 4);
    assert_eq!(length(Helper::StrLen, KERNEL, 0), 0);
    assert_eq!(length(Helper::StrLen, KERNEL + 8, 10_000), 3072);
    assert_eq!(length(Helper::StrLen, KERNEL + 3000, -1), 0);
    assert_eq!(length(Helper::StrLen, u64::MAX, 9), 0);
    assert_eq!(length(Helper::StrLen, 0x1000, 100), 0);
    assert_eq!(length(Helper::UserStrLen, 0x1000, 100), 12);
}

#[test]
fn copies_fill_their_buffer() {
    let copy = |helper, size: i32, address: u64| {
        let program = probe(&[array(8)], |b| {
            lookup(b, 0);
            b.store(R0, 0, Size::B8, -1)
                .mov(R7, R0)
                .mov(R1, R0)
                .mov(R2, size)
                .set(R3, address as i64)
                .call(helper)
                .push(Insn::Exit);
        });
        let mut machine = TestMachine::new(&program);
        machine.put(Space::Kernel, KERNEL, b"text\0");
        machine.put(Space::User, 0x1000, b"user\0more");
        machine.comm = *b"a task of 15 le\0";
        let result = run(&program, &mut machine, LIMIT).unwrap();
        let value = machine.value(MapIndex(0), 0, &1_u32.to_le_bytes()).unwrap();
        (result as i64, <[u8; 8]>::try_from(value).unwrap())
    };
    use Helper as H;
    assert_eq!(
        copy(H::ReadKernel, 4, KERNEL),
        (0, *b"text\xff\xff\xff\xff")
    );
    assert_eq!(
        copy(H::ReadKernel, 6, KERNEL),
        (errno::EFAULT, *b"\0\0\0\0\0\0\xff\xff")
    );
    assert_eq!(copy(H::ReadUser, 8, 0x1000), (0, *b"user\0mor"));
    assert_eq!(copy(H::ReadUser, 8, KERNEL), (errno::EFAULT, [0; 8]));
    // Zeros after the NUL.
    assert_eq!(copy(H::ReadUserStr, 8, 0x1000), (5, *b"user\0\0\0\0"));
    assert_eq!(copy(H::ReadKernelStr, 7, KERNEL), (5, *b"text\0\0\0\xff"));
    assert_eq!(
        copy(H::ReadKernelStr, 4, KERNEL),
        (4, *b"tex\0\xff\xff\xff\xff")
    );
    assert_eq!(
        copy(H::ReadKernelStr, 1, 0),
        (1, *b"\0\xff\xff\xff\xff\xff\xff\xff")
    );
    assert_eq!(copy(H::ReadKernelStr, 8, 0x1000), (errno::EFAULT, [0; 8]));
    assert_eq!(copy(H::Comm, 8, 0), (0, *b"a task \0"));
    assert_eq!(copy(H::Comm, 3, 0), (0, *b"a \0\xff\xff\xff\xff\xff"));
}

#[test]
fn a_name_fills_a_larger_buffer_with_zeros() {
    let comm = probe(&[], |b| {
        b.mov(R1, R10)
            .alu(AluOp::Add, R1, -24)
            .mov(R2, 24)
            .call(Helper::Comm)
            .load(R0, R10, -8, Size::B8)
            .load(R1, R10, -24, Size::B4)
            .alu(AluOp::Add, R0, R1)
            .push(Insn::Exit);
    });
    assert_eq!(result(&comm), Ok(u32::from_le_bytes(*b"test").into()));
}
