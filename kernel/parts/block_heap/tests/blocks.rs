//! Blocks of all classes and whole pages, taken from and given back to memory of a process.
//!
//! Random operations are checked against the list of blocks that are out: none touches another one,
//! and all of the memory comes back.

use std::{
    alloc::{Layout, alloc, dealloc},
    ptr::NonNull,
};

use block_heap::{BlockHeap, PAGE, missing};
use proptest::prelude::*;

/// A heap, and the memory it is in.
struct Ground {
    heap: BlockHeap,
    start: NonNull<u8>,
    pages: usize,
}

impl Ground {
    fn new(pages: usize) -> Self {
        // SAFETY: not without bytes.
        let start = NonNull::new(unsafe { alloc(Self::layout(pages)) }).unwrap();
        let mut heap = BlockHeap::empty();
        // In two pieces, as a heap grows.
        let first = pages.div_ceil(2) * PAGE;
        // SAFETY: whole pages of memory of our own; the second piece begins where the first ends.
        unsafe {
            heap.add(start, first);
            if first < pages * PAGE {
                heap.add(start.add(first), pages * PAGE - first);
            }
        }
        Self { heap, start, pages }
    }

    fn layout(pages: usize) -> Layout {
        Layout::from_size_align(pages * PAGE, 1 << 16).unwrap()
    }

    /// Takes a block and fills it with `mark`.
    fn take(&mut self, layout: Layout, mark: u8) -> Option<Block> {
        let start = self.heap.allocate(layout)?;
        let offset = start.as_ptr() as usize - self.start.as_ptr() as usize;
        assert!(offset + layout.size() <= self.pages * PAGE, "outside");
        assert_eq!(start.as_ptr() as usize % layout.align(), 0, "{layout:?}");
        // SAFETY: the block is as large, and ours.
        unsafe { start.write_bytes(mark, layout.size()) };
        Some(Block {
            start,
            layout,
            mark,
        })
    }

    /// Checks that a block still has the bytes that were written to it, and gives it back.
    fn give_back(&mut self, block: Block) {
        // SAFETY: `take` has written all of it.
        let bytes =
            unsafe { std::slice::from_raw_parts(block.start.as_ptr(), block.layout.size()) };
        assert!(
            bytes.iter().all(|byte| *byte == block.mark),
            "somebody else has written into {:?}",
            block.layout
        );
        // SAFETY: it came from this heap with this layout.
        unsafe { self.heap.deallocate(block.start, block.layout) };
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // SAFETY: it came from `alloc` with this layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.pages)) };
    }
}

struct Block {
    start: NonNull<u8>,
    layout: Layout,
    mark: u8,
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// The size of the block for a layout, from the heap's count of used bytes.
fn block_size(layout: Layout) -> usize {
    let mut ground = Ground::new(32);
    let block = ground.take(layout, 0).unwrap();
    let used = ground.heap.used();
    ground.give_back(block);
    assert_eq!(ground.heap.used(), 0);
    used
}

#[test]
fn sizes_are_powers_of_two_up_to_half_a_page_and_pages_above() {
    let expected = [
        (0, 1, 16),
        (1, 1, 16),
        (16, 8, 16),
        (17, 8, 32),
        (64, 64, 64),
        (65, 1, 128),
        (1, 512, 512),
        (1025, 8, 2048),
        (2048, 8, 2048),
        (2049, 8, PAGE),
        (PAGE, 8, PAGE),
        (PAGE + 1, 8, 2 * PAGE),
        (8, 4 * PAGE, PAGE),
    ];
    for (size, align, block) in expected {
        assert_eq!(block_size(layout(size, align)), block, "{size} {align}");
    }
}

#[test]
fn each_block_of_a_class_is_aligned_to_its_size() {
    for size in (4..=11).map(|shift| 1 << shift) {
        let mut ground = Ground::new(8);
        let blocks: Vec<_> = (0..8 * PAGE / size)
            .map(|i| ground.take(layout(size, size), i as u8).unwrap())
            .collect();
        assert!(ground.take(layout(size, 1), 0).is_none(), "all are taken");
        blocks.into_iter().for_each(|block| ground.give_back(block));
    }
}

#[test]
fn what_is_used_up_is_refused_and_comes_back_whole() {
    let mut ground = Ground::new(16);
    let small = layout(2048, 8);
    for _ in 0..3 {
        let mut blocks: Vec<_> = (0..32).map(|i| ground.take(small, i).unwrap()).collect();
        assert!(ground.take(small, 0).is_none());
        assert!(ground.take(layout(PAGE, 8), 0).is_none());
        assert_eq!(
            (ground.heap.used(), ground.heap.free_pages()),
            (16 * PAGE, 0)
        );
        // Any one that is given back is the next one taken.
        let block = blocks.swap_remove(7);
        let start = block.start;
        ground.give_back(block);
        blocks.push(ground.take(small, 99).unwrap());
        assert_eq!(blocks.last().unwrap().start, start);
        blocks.into_iter().for_each(|block| ground.give_back(block));
        assert_eq!(ground.heap.used(), 0);
    }
}

#[test]
fn pages_that_touch_are_one_hole_again() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut ground = Ground::new(6);
        let mut blocks: Vec<_> = (0..3)
            .map(|i| ground.take(layout(2 * PAGE, 8), i))
            .collect();
        for i in order {
            assert!(ground.take(layout(6 * PAGE, 8), 0).is_none());
            ground.give_back(blocks[i].take().unwrap());
        }
        let all = ground.take(layout(6 * PAGE, 8), 9).unwrap();
        ground.give_back(all);
    }
}

#[test]
fn as_much_as_is_missing_is_enough() {
    let cases = [
        (8, 8),
        (2048, 2048),
        (2049, 1),
        (PAGE, PAGE),
        (5 * PAGE, 4 * PAGE),
    ];
    for layout in cases.map(|(size, align)| layout(size, align)) {
        // The page before it is taken, so added memory may begin anywhere.
        let missing = missing(layout).unwrap();
        let mut ground = Ground::new(1 + missing / PAGE);
        let first = ground.take(Layout::new::<[u8; PAGE]>(), 1).unwrap();
        let block = ground.take(layout, 2).expect("it was said to be enough");
        ground.give_back(block);
        ground.give_back(first);
    }
    let too_much = Layout::from_size_align(isize::MAX as usize, 1).unwrap();
    assert_eq!(missing(too_much), None);
    assert!(Ground::new(1).take(too_much, 0).is_none());
}

#[test]
fn rounds_need_nothing_more_than_the_first() {
    let mut ground = Ground::new(256);
    let mut after_the_first = None;
    for round in 0..100 {
        let mut blocks = Vec::new();
        for i in 0..1000_usize {
            let size = [24, 100, 700, 40, 2048, 5000][(i * 7 + round) % 6];
            if size == 5000 && i % 50 != 0 {
                continue;
            }
            blocks.push(ground.take(layout(size, 8), i as u8).unwrap());
        }
        // In another order in each round.
        while !blocks.is_empty() {
            let index = (round * 31 + blocks.len() * 17) % blocks.len();
            let block = blocks.swap_remove(index);
            ground.give_back(block);
        }
        assert_eq!(ground.heap.used(), 0);
        // Each of the six patterns has come by then.
        if round == 5 {
            after_the_first = Some(ground.heap.free_pages());
        } else if round > 5 {
            assert_eq!(Some(ground.heap.free_pages()), after_the_first, "{round}");
        }
    }
}

/// Pages that are away: the heap does not touch them. When they are back, they and their
/// neighbours are one hole.
#[test]
fn pages_that_were_taken_away_come_back_whole() {
    let mut ground = Ground::new(64);
    let four = layout(4 * PAGE, 4 * PAGE);
    let whole = layout(63 * PAGE, PAGE);
    // One page is taken, so that no hole begins at a multiple of four.
    let block = ground.take(layout(PAGE, 8), 1).unwrap();
    let mut away = Vec::new();
    while let Some(start) = ground.heap.take_away(four) {
        assert_eq!(start.as_ptr() as usize % (4 * PAGE), 0);
        // SAFETY: four pages of memory of our own, which the heap has given up.
        unsafe { start.write_bytes(0xaa, 4 * PAGE) };
        away.push(start);
    }
    assert_eq!(away.len(), 15);
    assert_eq!(
        (ground.heap.used(), ground.heap.free_pages()),
        (PAGE, 3 * PAGE)
    );
    let rest: Vec<_> = (0..3).map(|i| ground.take(layout(PAGE, 8), i)).collect();
    assert!(ground.take(layout(PAGE, 8), 0).is_none());
    rest.into_iter()
        .flatten()
        .for_each(|block| ground.give_back(block));
    for start in &away {
        // SAFETY: as above; the blocks between have been written since.
        let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), 4 * PAGE) };
        assert!(bytes.iter().all(|byte| *byte == 0xaa), "touched");
    }
    // Several that touch come back as one. The others come back alone and in another order.
    away.sort();
    assert!(ground.heap.take_away(layout(8, 8)).is_none(), "no page");
    let first = away.remove(0);
    away.remove(0);
    // SAFETY: they were taken away, and touch.
    unsafe { ground.heap.bring_back(first, layout(8 * PAGE, PAGE)) };
    assert!(ground.take(whole, 0).is_none());
    for start in away.into_iter().rev() {
        // SAFETY: it was taken away.
        unsafe { ground.heap.bring_back(start, four) };
    }
    let all = ground.take(whole, 2).expect("one hole");
    ground.give_back(all);
    ground.give_back(block);
    assert_eq!(ground.heap.free_pages(), 64 * PAGE);
}

#[derive(Clone, Debug)]
enum Operation {
    Take(usize, u32),
    GiveBack(usize),
    Resize(usize, usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    let size = prop_oneof![4 => 0..300_usize, 2 => 300..2100_usize, 1 => 2100..20_000_usize];
    prop_oneof![
        4 => (size.clone(), 0..14_u32).prop_map(|(size, shift)| Operation::Take(size, shift)),
        3 => any::<usize>().prop_map(Operation::GiveBack),
        2 => (any::<usize>(), size).prop_map(|(index, size)| Operation::Resize(index, size)),
    ]
}

proptest! {
    #[test]
    fn random_operations_keep_blocks_apart(
        operations in prop::collection::vec(operation(), 1..200)
    ) {
        let mut ground = Ground::new(64);
        let mut blocks: Vec<Block> = Vec::new();
        let mut mark = 0_u8;
        for operation in operations {
            mark = mark.wrapping_add(1);
            match operation {
                Operation::Take(size, shift) => {
                    blocks.extend(ground.take(layout(size, 1 << shift), mark));
                }
                Operation::GiveBack(index) if !blocks.is_empty() => {
                    let block = blocks.swap_remove(index % blocks.len());
                    ground.give_back(block);
                }
                // As `realloc` does: the old one is given back once the new one is there.
                Operation::Resize(index, size) if !blocks.is_empty() => {
                    let index = index % blocks.len();
                    let align = blocks[index].layout.align();
                    if let Some(new) = ground.take(layout(size, align), mark) {
                        let old = std::mem::replace(&mut blocks[index], new);
                        ground.give_back(old);
                    }
                }
                _ => {}
            }
        }
        blocks.into_iter().for_each(|block| ground.give_back(block));
        prop_assert_eq!(ground.heap.used(), 0);
    }
}
