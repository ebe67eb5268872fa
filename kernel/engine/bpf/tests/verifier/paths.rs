//! Facts that hold on all paths, and how long a walk may be.
//!
//! Loops and branches multiply paths. The walk has limits on steps and memory, and forgets
//! differences that nothing reads; programs at these limits and beyond are here.

use proptest::{collection::vec, prelude::*};

use super::*;

/// `r2 = ` the one on one path, the other on another; then `then`.
fn either(b: &mut Builder, one: fn(&mut Builder), other: fn(&mut Builder)) {
    let (second, join) = (b.label(), b.label());
    b.load_register(R3, Register::Di)
        .branch(Condition::Equal, R3, 0, second);
    one(b);
    b.jump(join).place(second);
    other(b);
    b.place(join);
}

#[test]
fn facts_hold_on_all_paths() {
    refuses(
        "insn 5, `r4 = *(u64 *)(r2 + 0)`: expected the same kind of memory on every path, found \
         kernel memory or the context on one and other memory on another; use an instruction for \
         each",
        |b| {
            either(
                b,
                |b| {
                    b.mov(R2, R1);
                },
                |b| {
                    b.mov(R2, R3);
                },
            );
            b.load(R4, R2, 0, Size::B8).exit(0);
        },
    );
    refuses(
        "insn 7, `call add`: expected the same map on every path, found map 5 and map 0; use a \
         call for each",
        |b| {
            b.map(array(8));
            either(
                b,
                |b| {
                    b.load_map(R1, ARRAY);
                },
                |b| {
                    b.load_map(R1, MapIndex(5));
                },
            );
            b.mov(R2, 0).mov(R3, 0).call(Helper::Add).exit(0);
        },
    );
    let verified = takes(|b| {
        b.store(R10, -8, Size::B8, 1).store(R10, -24, Size::B8, 1);
        either(
            b,
            |b| {
                b.mov(R2, -8);
            },
            |b| {
                b.mov(R2, -24);
            },
        );
        b.alu(AluOp::Add, R2, R10).load(R4, R2, 0, Size::B8).exit(0);
    });
    assert_eq!(verified.facts()[8].memory, Some(Memory::Own));
    let verified = takes(|b| {
        either(
            b,
            |b| {
                b.mov(R2, 2);
            },
            |b| {
                b.mov(R2, 7);
            },
        );
        b.load_map(R1, ARRAY).mov(R3, 1).call(Helper::Add).exit(0);
    });
    assert_eq!(verified.facts()[7].most_index, Some(7));
}

/// `r0 = ` a value of the map, which is there.
fn take(b: &mut Builder, map: MapIndex) {
    b.mov(R3, 1);
    look_up_r3(b, map);
}

/// `r0 = ` a value of the map at an index that nothing is known of, or null.
fn look_up(b: &mut Builder, map: MapIndex) {
    b.load_register(R3, Register::Si);
    look_up_r3(b, map);
}

fn look_up_r3(b: &mut Builder, map: MapIndex) {
    b.store(R10, -4, Size::B4, R3)
        .mov(R6, R1)
        .load_map(R1, map)
        .mov(R2, R10)
        .alu(AluOp::Add, R2, -4)
        .call(Helper::MapLookup)
        .mov(R1, R6);
}

/// The way that is walked first is one on which all is well.
#[test]
fn where_a_value_comes_from_is_told_apart_when_ways_come_together() {
    // Which map it is of: those of one have 24 bytes, those of the other 4.
    for offset in [0, 2, 16] {
        let program = with_maps(ProgramKind::Probe, |b| {
            let end = b.label();
            either(b, |b| look_up(b, SMALL), |b| look_up(b, ARRAY));
            b.branch(Condition::Equal, R0, 0, end)
                .load(R4, R0, offset, Size::B2)
                .place(end)
                .exit(0);
        });
        assert_eq!(verify(program).is_ok(), offset < 4, "{offset}");
        let program = with_maps(ProgramKind::Probe, |b| {
            either(b, |b| take(b, SMALL), |b| take(b, ARRAY));
            b.load(R4, R0, offset, Size::B2).exit(0);
        });
        assert_eq!(verify(program).is_ok(), offset < 4, "{offset}");
    }
    // Which lookup it is of: one that is there says nothing of another.
    let joined = |other_way: fn(&mut Builder)| {
        verify(with_maps(ProgramKind::Probe, |b| {
            let end = b.label();
            look_up(b, ARRAY);
            b.mov(R7, R0).mov(R8, R0);
            either(b, other_way, |_| {});
            b.branch(Condition::Equal, R7, 0, end)
                .load(R4, R8, 0, Size::B8)
                .place(end)
                .exit(0);
        }))
    };
    joined(|_| {}).unwrap();
    joined(|b| {
        look_up(b, ARRAY);
        b.mov(R7, R0).mov(R8, R0);
    })
    .unwrap();
    let again: [fn(&mut Builder); 2] = [
        |b| {
            look_up(b, ARRAY);
            b.mov(R8, R0);
        },
        |b| {
            look_up(b, ARRAY);
            b.mov(R7, R0);
            look_up(b, ARRAY);
            b.mov(R8, R0);
        },
    ];
    for other_way in again {
        let refusal = joined(other_way).unwrap_err().to_string();
        assert!(refusal.contains("null"), "{refusal}");
    }
}

#[test]
fn code_that_no_path_reaches_is_told_and_not_checked() {
    let verified = takes(|b| {
        let end = b.label();
        b.mov(R2, 5)
            .branch(Condition::Above, R2, 4, end)
            .store(R2, 0, Size::B8, 1)
            .place(end)
            .exit(0);
    });
    let reached: Vec<_> = verified.facts().iter().map(|fact| fact.reached).collect();
    assert_eq!(reached, [true, true, false, true, true]);
}

/// A loop of so many turns, with `body` in it. `r9` counts.
fn turns(b: &mut Builder, turns: i64, body: impl FnOnce(&mut Builder)) {
    let head = b.label();
    b.mov(R9, 0).set(R8, turns).place(head);
    body(b);
    b.alu(AluOp::Add, R9, 1)
        .branch(Condition::NotEqual, R9, R8, head)
        .exit(0);
}

#[test]
fn paths_end_in_time() {
    // Two steps for each turn, and four around them.
    let most = (i64::from(MOST_PATH) - 4) / 2;
    takes(|b| turns(b, most, |_| {}));
    refuses(
        "insn 2, `r9 += 1`: expected a path of at most 65536 steps, found a longer one through \
         here; bound the loop, or make fewer turns",
        |b| turns(b, most + 2, |_| {}),
    );
    // A call counts for more, and so does a load of kernel memory.
    let most_calls = (i64::from(MOST_PATH) - 4) / i64::from(2 + STEPS_OF_CALL);
    let call = |b: &mut Builder| {
        b.call(Helper::Tsc);
    };
    takes(|b| turns(b, most_calls, call));
    verify(with_maps(ProgramKind::Probe, |b| {
        turns(b, most_calls + 1, call)
    }))
    .unwrap_err();
    let most_loads = (i64::from(MOST_PATH) - 4) / i64::from(2 + STEPS_OF_KERNEL_LOAD);
    let load = |b: &mut Builder| {
        b.load(R3, R9, 0, Size::B8);
    };
    takes(|b| turns(b, most_loads, load));
    verify(with_maps(ProgramKind::Probe, |b| {
        turns(b, most_loads + 1, load)
    }))
    .unwrap_err();
    refuses(
        "insn 1, `r6 = 1`: expected a loop to change something that ends it, found the same state \
         again; count its turns in a register or on the stack",
        |b| {
            let head = b.label();
            b.mov(R6, 1).place(head).mov(R6, 1).jump(head);
        },
    );
}

proptest! {
    /// Ways come together again and again, and which one is walked first is the verifier's matter.
    #[test]
    fn the_longest_path_is_the_longest_of_all_ways(
        parts in vec((0_u8..4, 1_usize..8), 1..30),
    ) {
        let end = parts.len();
        let verified = taken(|b| {
            b.mov(R6, R1);
            let labels: Vec<_> = (0..=end).map(|_| b.label()).collect();
            for (at, (part, skip)) in parts.iter().enumerate() {
                b.place(labels[at]);
                match part {
                    0 => b.mov(R7, 1),
                    1 => b.call(Helper::Tsc),
                    _ => b
                        .load(R2, R6, 0, Size::B8)
                        .branch(Condition::Equal, R2, 0, labels[end.min(at + skip)]),
                };
            }
            b.place(labels[end]).exit(0);
        });
        // From the last part to the first: the steps from there to the end.
        let mut from = vec![2];
        for (part, skip) in parts.iter().rev() {
            let on = from[from.len() - 1];
            from.push(match part {
                0 => 1 + on,
                1 => STEPS_OF_CALL + on,
                _ => 2 + on.max(from[from.len().saturating_sub(*skip)]),
            });
        }
        prop_assert_eq!(verified.cost().path, 1 + from[end]);
    }
}

#[test]
fn the_walk_ends_in_time_and_memory() {
    // Each bit that is put together doubles the states.
    refuses(
        "insn 66, `r0 = r7`: expected that 200000 steps show all paths, found more \
         of them; make loops and branches fewer",
        |b| {
            b.mov(R6, R1).mov(R7, 0);
            for _ in 0..16 {
                let over = b.label();
                b.load(R2, R6, 0, Size::B8)
                    .alu(AluOp::ShiftLeft, R7, 1)
                    .branch(Condition::Equal, R2, 0, over)
                    .alu(AluOp::Or, R7, 1)
                    .place(over);
            }
            b.mov(R0, R7).push(Insn::Exit);
        },
    );
    // Each turn leaves a way for later, with a full stack.
    refuses(
        "insn 69, `if r2 == 0 goto 71`: expected that 4194304 bytes hold the states of all paths, \
         found more; make loops and branches fewer",
        |b| {
            b.mov(R6, R1);
            for slot in 1..=64 {
                b.store(R10, -8 * slot, Size::B8, 0);
            }
            turns(b, 4000, |b| {
                let over = b.label();
                b.mov(R7, 0)
                    .load(R2, R6, 0, Size::B8)
                    .branch(Condition::Equal, R2, 0, over)
                    .mov(R7, 1)
                    .place(over)
                    .store(R10, -8, Size::B8, R7);
            });
        },
    );
    let out_of_memory = Refusal {
        at: None,
        cause: Cause::OutOfMemory,
    };
    assert_eq!(
        out_of_memory.to_string(),
        "there is no memory to check the program; free some and try again"
    );
}

/// Two ways that differ only in what nothing reads are one, so that 64 branches in a row do not
/// make 2^64 paths.
#[test]
fn branches_in_a_row_are_walked_once() {
    takes(|b| {
        b.mov(R6, R1);
        for _ in 0..64 {
            let over = b.label();
            b.load(R2, R6, 0, Size::B8)
                .mov(R3, 2)
                .branch(Condition::Equal, R2, 0, over)
                .mov(R3, 1)
                .place(over);
        }
        b.exit(0);
    });
}
