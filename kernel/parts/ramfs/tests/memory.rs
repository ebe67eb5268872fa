//! Without memory the tree refuses a request, whichever allocation fails, and is as before. A
//! request that removes something takes no memory.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ptr::null_mut,
};

use abi::open::{CREAT, RDWR};
use ramfs::{Error, Install, NodeId, Tree};

thread_local! {
    /// How many more allocations of this thread succeed; None: all.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

struct Failing;

// SAFETY: the system's allocator, or null, which says that there is no memory.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match LEFT.get() {
            Some(0) => return null_mut(),
            left => LEFT.set(left.map(|left| left - 1)),
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

type Files = Tree<&'static str>;

/// Runs `work` with room for `count` allocations.
fn with_room_for<T>(count: usize, work: impl FnOnce() -> T) -> T {
    LEFT.set(Some(count));
    let result = work();
    LEFT.set(None);
    result
}

/// All paths below the directory `at`, with their numbers.
fn all(tree: &Files, at: NodeId) -> Vec<(String, u64)> {
    let mut found = vec![];
    let mut next = 2;
    while let Some(entry) = tree.next_entry(at, next).unwrap() {
        next = entry.next;
        let path = tree.path_of(entry.id).unwrap();
        found.push((String::from_utf8(path).unwrap(), entry.id.number()));
        if entry.mode & 0o40000 != 0 {
            found.extend(all(tree, entry.id));
        }
    }
    found
}

#[test]
fn each_allocation_may_fail() {
    type Work = fn(&mut Files) -> Result<(), Error>;
    let works: [(&str, usize, Work); 4] = [
        ("install", 12, |tree| {
            let file = Install::Virtual("file");
            tree.install(b"/sys/tracing/events/group/event/id", 0o444, file)?;
            tree.install(b"/tmp/alias", 0o555, Install::Alias(NodeId::ROOT))
                .map(drop)
        }),
        ("mkdir", 3, |tree| {
            tree.mkdir(NodeId::ROOT, b"/tmp/d", 0o755).map(drop)
        }),
        ("open", 3, |tree| {
            tree.open(NodeId::ROOT, b"/tmp/f", CREAT | RDWR, 0o644)
                .map(drop)
        }),
        ("path", 1, |tree| {
            let tmp = tree.walk(NodeId::ROOT, b"/tmp")?;
            tree.path_of(tmp).map(drop)
        }),
    ];
    for (name, least, work) in works {
        for room in 0.. {
            let mut tree = Files::new(1 << 20);
            tree.install(b"/tmp", 0o777, Install::Directory).unwrap();
            let (before, used) = (all(&tree, NodeId::ROOT), tree.used());
            match with_room_for(room, || work(&mut tree)) {
                Ok(()) => {
                    assert!(room >= least, "{name} takes {room}");
                    break;
                }
                Err(error) => assert_eq!(error, Error::OutOfMemory, "{name}, {room}"),
            }
            // The alias is the second request of its work: the first may have been granted.
            if tree.walk(NodeId::ROOT, b"/sys").is_ok() {
                tree.uninstall_all(b"/sys").unwrap();
                assert_eq!(tree.take_removed(), Some("file"));
            }
            assert_eq!((all(&tree, NodeId::ROOT), tree.used()), (before, used));
            work(&mut tree).unwrap();
        }
    }
}

#[test]
fn what_removes_takes_no_memory() {
    let mut tree = Files::new(1 << 20);
    tree.install(b"/tmp", 0o777, Install::Directory).unwrap();
    let (before, used) = (all(&tree, NodeId::ROOT), tree.used());
    for round in 0..3 {
        for (path, name) in [
            ("/sys/events/a/id", "a"),
            ("/sys/events/b/id", "b"),
            ("/sys/events/enable", "enable"),
        ] {
            tree.install(path.as_bytes(), 0o444, Install::Virtual(name))
                .unwrap();
        }
        let file = tree.open(NodeId::ROOT, b"/tmp/f", CREAT | RDWR, 0o644);
        tree.mkdir(NodeId::ROOT, b"/tmp/d", 0o755).unwrap();
        let removed = with_room_for(0, || {
            tree.uninstall_all(b"/sys").unwrap();
            tree.unlink(NodeId::ROOT, b"/tmp/f").unwrap();
            tree.rmdir(NodeId::ROOT, b"/tmp/d").unwrap();
            assert_eq!(tree.release(file.unwrap()), None);
            [(); 4].map(|()| tree.take_removed())
        });
        assert_eq!(removed, [Some("a"), Some("b"), Some("enable"), None]);
        assert_eq!(
            (all(&tree, NodeId::ROOT), tree.used()),
            (before.clone(), used),
            "{round}"
        );
    }
}
