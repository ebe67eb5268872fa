//! The tree as a program meets it: paths, modes, open files and listings.
//!
//! Each refusal is tried with its reason. Random requests come last, against a map from paths to
//! contents.

use crate::{Error::*, *};
use abi::open::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Files = Tree<&'static str>;

fn tree() -> Files {
    let mut tree = Files::new(1 << 20);
    tree.install(b"/tmp", 0o755, Install::Directory).unwrap();
    tree.install(b"/dev/console", 0o600, Install::Device("console"))
        .unwrap();
    tree
}

fn listing(tree: &Files, id: NodeId) -> Vec<String> {
    let mut names = vec![];
    let mut at = 0;
    while let Some(entry) = tree.next_entry(id, at).unwrap() {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        at = entry.next;
    }
    names
}

/// Removes all that is at `path`. Returns the special files that are not in use, in order.
fn uninstall_all(tree: &mut Files, path: &str) -> Result<Vec<&'static str>, Error> {
    tree.uninstall_all(path.as_bytes())?;
    let mut freed: Vec<_> = std::iter::from_fn(|| tree.take_removed()).collect();
    freed.sort();
    Ok(freed)
}

fn create(tree: &mut Files, path: &str) -> NodeId {
    tree.open(NodeId::ROOT, path.as_bytes(), CREAT | RDWR, 0o644)
        .unwrap()
}

/// Names that differ before, at and after their eighth byte, and those that begin with another one.
#[test]
fn names_that_begin_alike_are_different_files() {
    let names = [
        "a",
        "ab",
        "aa",
        "a\u{1}",
        "sevensz",
        "seven_s",
        "eight_by",
        "eight_bz",
        "eight_bys",
        "eight_byt",
        "eight_by_and_more",
        "eight_by_and_mord",
        "\u{7f}",
        "\u{fc}ber",
        "\u{fc}bes",
    ];
    let mut tree = tree();
    let made: Vec<_> = names
        .iter()
        .map(|name| create(&mut tree, &format!("/tmp/{name}")))
        .collect();
    let found =
        |tree: &Files, name: &str| tree.walk(NodeId::ROOT, format!("/tmp/{name}").as_bytes());
    for (name, id) in names.iter().zip(&made) {
        assert_eq!(found(&tree, name), Ok(*id), "{name}");
    }
    for other in ["b", "eight_b", "eight_by_and_mor", "sevens", "\u{fc}be"] {
        assert_eq!(found(&tree, other), Err(NotFound), "{other}");
    }
    for (removed, name) in names.iter().enumerate() {
        tree.unlink(NodeId::ROOT, format!("/tmp/{name}").as_bytes())
            .unwrap();
        for (at, (name, id)) in names.iter().zip(&made).enumerate() {
            let want = if at > removed { Ok(*id) } else { Err(NotFound) };
            assert_eq!(found(&tree, name), want, "{name}");
        }
    }
}

#[test]
fn dots_and_slashes_lead_where_they_should() {
    let mut tree = tree();
    let a = tree.mkdir(NodeId::ROOT, b"/tmp/a/", 0o755).unwrap();
    let b = tree.mkdir(a, b"b", 0o755).unwrap();
    for (cwd, path, want) in [
        (a, "b", b),
        (a, "./b", b),
        (a, "b/.", b),
        (b, "..", a),
        (b, "../../a//b/", b),
        (b, "/tmp/a", a),
        (b, "/../..", NodeId::ROOT),
        (b, "///", NodeId::ROOT),
    ] {
        assert_eq!(tree.walk(cwd, path.as_bytes()), Ok(want), "{path}");
    }
    assert_eq!(tree.path_of(b).unwrap(), b"/tmp/a/b");
    assert_eq!(tree.path_of(NodeId::ROOT).unwrap(), b"/");
}

#[test]
fn walk_names_what_is_wrong() {
    let mut tree = tree();
    create(&mut tree, "/tmp/file");
    let long_name = [b'x'; 256];
    let long_path = [b'/'; 4096];
    for (path, want) in [
        (&b""[..], NotFound),
        (b"nothing", NotFound),
        (b"/tmp/nothing/more", NotFound),
        (b"/tmp/file/", NotDirectory),
        (b"/tmp/file/more", NotDirectory),
        (b"/tmp/file/..", NotDirectory),
        (&long_name, NameTooLong),
        (&long_path, NameTooLong),
    ] {
        assert_eq!(
            tree.walk(NodeId::ROOT, path),
            Err(want),
            "{}",
            path.escape_ascii()
        );
    }
    assert_eq!(tree.walk(NodeId::ROOT, &long_name[..255]), Err(NotFound));
    assert_eq!(
        tree.walk(NodeId::ROOT, &long_path[..4095]),
        Ok(NodeId::ROOT)
    );
}

#[test]
fn open_flags_create_refuse_and_truncate() {
    let mut tree = tree();
    let root = NodeId::ROOT;
    assert_eq!(tree.open(root, b"/tmp/f", RDONLY, 0), Err(NotFound));
    let f = tree
        .open(root, b"/tmp/f", CREAT | EXCL | RDWR, 0o644)
        .unwrap();
    tree.write_at(f, 0, b"content").unwrap();
    for (path, flags, want) in [
        (&b"/tmp/f"[..], CREAT | EXCL | RDWR, Exists),
        (b"/tmp", CREAT | EXCL, Exists),
        (b"/tmp", CREAT | RDWR, IsDirectory),
        (b"/tmp", WRONLY, IsDirectory),
        (b"/tmp", TRUNC, IsDirectory),
        (b"/tmp/new/", CREAT | RDWR, IsDirectory),
        (b"/tmp/new", CREAT | DIRECTORY, Invalid),
        (b"/tmp/f", DIRECTORY, NotDirectory),
        (b"/tmp/f", ACCMODE, Invalid),
        (b"/tmp/no/new", CREAT | RDWR, NotFound),
        (b"/tmp/f/new", CREAT | RDWR, NotDirectory),
    ] {
        assert_eq!(
            tree.open(root, path, flags, 0o644),
            Err(want),
            "{} {flags:o}",
            path.escape_ascii()
        );
    }
    assert_eq!(tree.open(root, b"/tmp/f", CREAT | RDWR, 0o600), Ok(f));
    assert_eq!(tree.attributes(f).unwrap().size, 7);
    assert_eq!(tree.attributes(f).unwrap().mode, 0o100644);
    tree.open(root, b"/tmp/f", WRONLY | TRUNC, 0).unwrap();
    assert_eq!(tree.attributes(f).unwrap().size, 0);
    tree.open(root, b"/tmp", RDONLY | DIRECTORY, 0).unwrap();
    assert!(tree.walk(root, b"/tmp/new").is_err());
}

#[test]
fn permission_bits_bind_users_but_not_the_kernel() {
    let mut tree = tree();
    let root = NodeId::ROOT;
    tree.install(b"/proc/kallsyms", 0o444, Install::Virtual("kallsyms"))
        .unwrap();
    assert_eq!(
        tree.open(root, b"/proc/kallsyms", RDWR, 0),
        Err(AccessDenied)
    );
    assert_eq!(
        tree.open(root, b"/proc/kallsyms", WRONLY | TRUNC, 0),
        Err(AccessDenied)
    );
    let id = tree.open(root, b"/proc/kallsyms", RDONLY, 0).unwrap();
    assert_eq!(tree.special(id), Some(&"kallsyms"));
    assert_eq!(tree.unlink(root, b"/proc/kallsyms"), Err(AccessDenied));
    assert_eq!(tree.mkdir(root, b"/proc/new", 0o755), Err(AccessDenied));
    assert_eq!(
        tree.open(root, b"/proc/new", CREAT, 0o644),
        Err(AccessDenied)
    );
    assert_eq!(
        tree.install(b"/proc/kallsyms", 0o444, Install::Virtual("again")),
        Err(Exists)
    );
    // The file goes to its owner when it is no longer in use.
    assert_eq!(tree.uninstall(b"/proc/kallsyms"), Ok(None));
    assert_eq!(tree.release(id), Some("kallsyms"));
    assert_eq!(tree.walk(root, b"/proc/kallsyms"), Err(NotFound));
    // Its creator may write to a file that is read-only for later openers.
    let id = tree.open(root, b"/tmp/ro", CREAT | WRONLY, 0o444).unwrap();
    tree.write_at(id, 0, b"x").unwrap();
    assert_eq!(tree.open(root, b"/tmp/ro", WRONLY, 0), Err(AccessDenied));
    tree.mkdir(root, b"/tmp/closed", 0o600).unwrap();
    assert_eq!(tree.walk(root, b"/tmp/closed/x"), Err(AccessDenied));
}

#[test]
fn mkdir_rmdir_and_unlink_name_what_is_wrong() {
    let mut tree = tree();
    let root = NodeId::ROOT;
    create(&mut tree, "/tmp/f");
    tree.mkdir(root, b"/tmp/d", 0o755).unwrap();
    tree.mkdir(root, b"/tmp/d/e", 0o755).unwrap();
    for (path, want) in [
        ("/tmp/f", Exists),
        ("/tmp/d/", Exists),
        ("/", Exists),
        (".", Exists),
        ("/tmp/f/x", NotDirectory),
        ("/no/x", NotFound),
    ] {
        assert_eq!(
            tree.mkdir(root, path.as_bytes(), 0o755),
            Err(want),
            "mkdir {path}"
        );
    }
    for (path, want) in [
        ("/tmp/f", NotDirectory),
        ("/tmp/d", NotEmpty),
        ("/tmp/d/..", NotEmpty),
        ("/tmp/d/.", Invalid),
        ("/", Busy),
        ("/tmp/no", NotFound),
    ] {
        assert_eq!(tree.rmdir(root, path.as_bytes()), Err(want), "rmdir {path}");
    }
    for (path, want) in [
        ("/tmp/d", IsDirectory),
        ("/", IsDirectory),
        ("/tmp/f/", NotDirectory),
        ("/tmp/no", NotFound),
    ] {
        assert_eq!(
            tree.unlink(root, path.as_bytes()),
            Err(want),
            "unlink {path}"
        );
    }
    assert_eq!(
        tree.attributes(tree.walk(root, b"/tmp/d").unwrap())
            .unwrap()
            .links,
        3
    );
    tree.rmdir(root, b"/tmp/d/e/").unwrap();
    tree.rmdir(root, b"/tmp/d").unwrap();
    tree.unlink(root, b"/tmp/f").unwrap();
    assert_eq!(
        listing(&tree, tree.walk(root, b"/tmp").unwrap()),
        [".", ".."]
    );
}

#[test]
fn open_file_outlives_its_name() {
    let mut tree = tree();
    let used = tree.used();
    let f = create(&mut tree, "/tmp/f");
    tree.write_at(f, 0, b"still here").unwrap();
    tree.unlink(NodeId::ROOT, b"/tmp/f").unwrap();
    let mut buf = [0; 32];
    assert_eq!(tree.read_at(f, 6, &mut buf), Ok(4));
    assert_eq!(&buf[..4], b"here");
    assert_eq!(tree.attributes(f).unwrap().links, 0);
    tree.release(f);
    assert_eq!(tree.attributes(f), Err(NotFound));
    assert_eq!(tree.used(), used);
}

#[test]
fn removed_working_directory_is_a_dead_end() {
    let mut tree = tree();
    let d = tree.mkdir(NodeId::ROOT, b"/tmp/d", 0o755).unwrap();
    tree.retain(d).unwrap();
    tree.rmdir(NodeId::ROOT, b"/tmp/d").unwrap();
    assert_eq!(tree.path_of(d), Err(NotFound));
    assert_eq!(tree.mkdir(d, b"x", 0o755), Err(NotFound));
    assert_eq!(tree.open(d, b"x", CREAT | RDWR, 0o644), Err(NotFound));
    assert_eq!(tree.next_entry(d, 0), Ok(None));
    assert_eq!(tree.walk(d, b"../d"), Err(NotFound));
    assert_eq!(tree.walk(d, b".."), tree.walk(NodeId::ROOT, b"/tmp"));
    tree.release(d);
    assert_eq!(tree.walk(d, b"."), Err(NotFound));
}

#[test]
fn reading_and_writing_meet_at_the_end_of_the_file() {
    let mut tree = tree();
    let f = create(&mut tree, "/tmp/f");
    let mut buf = [9; 8];
    assert_eq!(tree.read_at(f, u64::MAX, &mut buf), Ok(0));
    tree.write_at(f, 4, b"ab").unwrap();
    assert_eq!(tree.read_at(f, 0, &mut buf), Ok(6));
    assert_eq!(&buf[..6], b"\0\0\0\0ab");
    tree.resize(f, 5).unwrap();
    tree.resize(f, 7).unwrap();
    assert_eq!(tree.read_at(f, 3, &mut buf), Ok(4));
    assert_eq!(&buf[..4], b"\0a\0\0", "what was cut off does not come back");
    assert_eq!(tree.write_at(f, MAX_FILE_BYTES, b"x"), Err(TooBig));
    assert_eq!(tree.write_at(f, u64::MAX, b"xy"), Err(TooBig));
    assert_eq!(tree.write_at(f, 1 << 19, b""), Ok(()));
    assert_eq!(tree.attributes(f).unwrap().size, 7);
    let console = tree.walk(NodeId::ROOT, b"/dev/console").unwrap();
    assert_eq!(tree.read_at(console, 0, &mut buf), Err(Invalid));
    assert_eq!(tree.read_at(NodeId::ROOT, 0, &mut buf), Err(IsDirectory));
}

#[test]
fn full_tree_refuses_and_recovers() {
    let mut tree = tree();
    let f = create(&mut tree, "/tmp/f");
    assert_eq!(tree.write_at(f, 1 << 20, b"x"), Err(NoSpace));
    assert_eq!(tree.attributes(f).unwrap().size, 0);
    // Growing by small steps gets to use the room that is left, though doubling would exceed it.
    let chunk = [7; 4096];
    let mut at = 0;
    while tree.write_at(f, at, &chunk).is_ok() {
        at += chunk.len() as u64;
    }
    assert!(at > 1_000_000, "{at}");
    let made = (0..)
        .take_while(|i| {
            tree.mkdir(NodeId::ROOT, format!("/tmp/{i}").as_bytes(), 0o755)
                .is_ok()
        })
        .count();
    assert!(made < 100);
    tree.resize(f, 0).unwrap();
    tree.mkdir(NodeId::ROOT, b"/tmp/more", 0o755).unwrap();
}

#[test]
fn listing_goes_on_across_changes() {
    let mut tree = tree();
    for name in ["a", "b", "c", "d"] {
        tree.mkdir(NodeId::ROOT, format!("/tmp/{name}").as_bytes(), 0o755)
            .unwrap();
    }
    let tmp = tree.walk(NodeId::ROOT, b"/tmp").unwrap();
    let mut at = 0;
    for want in [".", "..", "a", "b"] {
        let entry = tree.next_entry(tmp, at).unwrap().unwrap();
        assert_eq!(entry.name, want.as_bytes());
        at = entry.next;
    }
    tree.rmdir(tmp, b"b").unwrap();
    tree.rmdir(tmp, b"c").unwrap();
    tree.mkdir(tmp, b"0", 0o755).unwrap();
    for want in ["d", "0"] {
        let entry = tree.next_entry(tmp, at).unwrap().unwrap();
        assert_eq!(entry.name, want.as_bytes());
        at = entry.next;
    }
    assert_eq!(tree.next_entry(tmp, at), Ok(None));
    assert_eq!(tree.next_entry(tmp, u64::MAX), Ok(None));
}

#[test]
fn install_makes_the_way_and_refuses_odd_paths() {
    let mut tree = tree();
    let id = tree
        .install(
            b"/sys/kernel/debug/kprobes/list",
            0o400,
            Install::Virtual("list"),
        )
        .unwrap();
    assert_eq!(tree.attributes(id).unwrap().mode, 0o100400);
    assert_eq!(
        tree.attributes(tree.walk(NodeId::ROOT, b"/sys/kernel").unwrap())
            .unwrap()
            .mode,
        0o40555
    );
    for (path, want) in [
        (&b"/"[..], Invalid),
        (b"/a/../b", Invalid),
        (b"", NotFound),
        (b"/dev/console/x", NotDirectory),
    ] {
        assert_eq!(
            tree.install(path, 0o644, Install::Regular(vec![])),
            Err(want)
        );
    }
    assert_eq!(tree.uninstall(b"/sys/kernel"), Err(NotEmpty));
}

#[test]
fn a_directory_goes_with_all_that_is_in_it() {
    let mut tree = tree();
    let root = NodeId::ROOT;
    let before = tree.used();
    tree.install(b"/sys/other", 0o444, Install::Virtual("other"))
        .unwrap();
    let kept = tree.used();
    for (path, name) in [
        ("/sys/events/a/id", "a/id"),
        ("/sys/events/a/enable", "a/enable"),
        ("/sys/events/b/id", "b/id"),
        ("/sys/events/enable", "enable"),
    ] {
        tree.install(path.as_bytes(), 0o444, Install::Virtual(name))
            .unwrap();
    }
    tree.install(b"/sys/events/empty/inner", 0o555, Install::Directory)
        .unwrap();
    let regular = Install::Regular(vec![7; 100]);
    tree.install(b"/sys/events/b/text", 0o444, regular).unwrap();
    let open = tree.open(root, b"/sys/events/b/id", RDONLY, 0).unwrap();
    let cwd = tree.walk(root, b"/sys/events/a").unwrap();
    tree.retain(cwd).unwrap();

    let freed = uninstall_all(&mut tree, "/sys/events").unwrap();
    assert_eq!(freed, ["a/enable", "a/id", "enable"]);
    let sys = tree.walk(root, b"/sys").unwrap();
    assert_eq!(listing(&tree, sys), [".", "..", "other"]);
    assert_eq!(tree.attributes(sys).unwrap().links, 2);
    // A file in use stays for its users, and is found no more.
    assert_eq!(tree.special(open), Some(&"b/id"));
    assert_eq!(tree.path_of(open), Err(NotFound));
    assert_eq!(tree.walk(cwd, b"id"), Err(NotFound));
    assert_eq!(tree.mkdir(cwd, b"new", 0o755), Err(AccessDenied));
    assert_eq!(tree.release(open), Some("b/id"));
    assert_eq!(tree.release(cwd), None);
    assert_eq!(tree.used(), kept);

    // A file is no directory, and goes all the same. The name can be used again.
    assert_eq!(uninstall_all(&mut tree, "/sys/other"), Ok(vec!["other"]));
    assert_eq!(uninstall_all(&mut tree, "/sys/other"), Err(NotFound));
    assert_eq!(uninstall_all(&mut tree, "/"), Err(Invalid));
    tree.install(b"/sys/events/a/id", 0o444, Install::Virtual("new"))
        .unwrap();
    assert_eq!(uninstall_all(&mut tree, "/sys"), Ok(vec!["new"]));
    assert_eq!(tree.used(), before);
}

#[test]
fn an_alias_leads_to_its_directory() {
    let mut tree = tree();
    let root = NodeId::ROOT;
    let before = tree.used();
    tree.install(b"/sys/trace/events/id", 0o444, Install::Virtual("id"))
        .unwrap();
    let target = tree.walk(root, b"/sys/trace").unwrap();
    tree.install(b"/sys/debug/other", 0o444, Install::Virtual("other"))
        .unwrap();
    let alias = || Install::Alias(target);
    tree.install(b"/sys/debug/trace", 0o555, alias()).unwrap();
    assert_eq!(
        tree.install(b"/sys/debug/trace", 0o555, alias()),
        Err(Exists)
    );
    let file = tree.walk(root, b"/sys/trace/events/id").unwrap();
    let to_file = Install::Alias(file);
    assert_eq!(
        tree.install(b"/sys/debug/id", 0o555, to_file),
        Err(NotDirectory)
    );

    // Both ways lead to the same nodes, and back along the directory's own path.
    assert_eq!(tree.walk(root, b"/sys/debug/trace/"), Ok(target));
    assert_eq!(tree.walk(root, b"/sys/debug/trace/events/id"), Ok(file));
    assert_eq!(tree.path_of(target).unwrap(), b"/sys/trace");
    let parent = tree.walk(root, b"/sys").unwrap();
    assert_eq!(tree.walk(root, b"/sys/debug/trace/.."), Ok(parent));
    let debug = tree.walk(root, b"/sys/debug").unwrap();
    assert_eq!(listing(&tree, debug), [".", "..", "other", "trace"]);
    let mut at = 0;
    while let Some(entry) = tree.next_entry(debug, at).unwrap() {
        if entry.name == b"trace" {
            assert_eq!((entry.id, entry.mode), (target, 0o40555));
        }
        at = entry.next;
    }
    let open = tree.open(root, b"/sys/debug/trace", DIRECTORY, 0).unwrap();
    assert_eq!(open, target);
    tree.release(open);
    // A file that is made by one way is found by the other.
    tree.install(b"/sys/debug/trace/new", 0o444, Install::Virtual("new"))
        .unwrap();
    tree.walk(root, b"/sys/trace/new").unwrap();

    // The alias is removed alone, and an alias to nothing is found no more.
    assert_eq!(uninstall_all(&mut tree, "/sys/debug"), Ok(vec!["other"]));
    tree.walk(root, b"/sys/trace/new").unwrap();
    tree.install(b"/sys/again", 0o555, alias()).unwrap();
    assert_eq!(uninstall_all(&mut tree, "/sys/trace").unwrap().len(), 2);
    assert_eq!(tree.walk(root, b"/sys/again"), Err(NotFound));
    assert_eq!(tree.walk(root, b"/sys/again/events"), Err(NotFound));
    assert_eq!(tree.rmdir(root, b"/sys/again"), Err(NotDirectory));
    assert_eq!(listing(&tree, parent), [".", "..", "again"]);
    assert_eq!(tree.uninstall(b"/sys/again"), Ok(None));
    assert_eq!(uninstall_all(&mut tree, "/sys"), Ok(vec![]));
    assert_eq!(tree.used(), before);
}

/// One random operation on a handful of names.
#[derive(Clone, Debug)]
enum Op {
    Write { file: u8, at: u16, len: u16 },
    Resize { file: u8, len: u16 },
    Unlink { file: u8 },
    Mkdir { dir: u8 },
    Rmdir { dir: u8 },
}

fn op() -> impl Strategy<Value = Op> {
    let file = 0..8u8;
    prop_oneof![
        (file.clone(), 0..9000u16, 0..3000u16).prop_map(|(file, at, len)| Op::Write {
            file,
            at,
            len
        }),
        (file.clone(), 0..9000u16).prop_map(|(file, len)| Op::Resize { file, len }),
        file.clone().prop_map(|file| Op::Unlink { file }),
        (0..2u8).prop_map(|dir| Op::Mkdir { dir }),
        (0..2u8).prop_map(|dir| Op::Rmdir { dir }),
    ]
}

proptest! {
    /// The tree against a map from paths to contents. Files in two directories come and go.
    #[test]
    fn tree_agrees_with_a_map(ops in prop::collection::vec(op(), 1..60)) {
        let mut tree = Files::new(1 << 20);
        let empty = tree.used();
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut dirs = std::collections::BTreeSet::new();
        let root = NodeId::ROOT;
        let dir_of = |file: u8| format!("/{}", file % 2);
        let path_of = |file: u8| format!("/{}/{file}", file % 2);
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Write { file, at, len } => {
                    let path = path_of(file);
                    let opened = tree.open(root, path.as_bytes(), CREAT | RDWR, 0o644);
                    prop_assert_eq!(opened.is_ok(), dirs.contains(&dir_of(file)));
                    if let Ok(id) = opened {
                        let data = vec![i as u8 + 1; len.into()];
                        tree.write_at(id, at.into(), &data).unwrap();
                        tree.release(id);
                        let bytes = files.entry(path).or_default();
                        let (at, end) = (usize::from(at), usize::from(at) + data.len());
                        if !data.is_empty() {
                            bytes.resize(bytes.len().max(end), 0);
                            bytes[at..end].copy_from_slice(&data);
                        }
                    }
                }
                Op::Resize { file, len } => {
                    let path = path_of(file);
                    let opened = tree.open(root, path.as_bytes(), RDWR, 0);
                    prop_assert_eq!(opened.is_ok(), files.contains_key(&path));
                    if let Ok(id) = opened {
                        tree.resize(id, len.into()).unwrap();
                        tree.release(id);
                        files.get_mut(&path).unwrap().resize(len.into(), 0);
                    }
                }
                Op::Unlink { file } => {
                    let path = path_of(file);
                    let unlinked = tree.unlink(root, path.as_bytes()).is_ok();
                    prop_assert_eq!(unlinked, files.remove(&path).is_some());
                }
                Op::Mkdir { dir } => {
                    let made = tree.mkdir(root, format!("/{dir}").as_bytes(), 0o755).is_ok();
                    prop_assert_eq!(made, dirs.insert(format!("/{dir}")));
                }
                Op::Rmdir { dir } => {
                    let path = format!("/{dir}");
                    let empty = !files.keys().any(|file| file.starts_with(&path));
                    let removed = tree.rmdir(root, path.as_bytes()).is_ok();
                    prop_assert_eq!(removed, dirs.contains(&path) && empty);
                    if removed {
                        dirs.remove(&path);
                    }
                }
            }
            for (path, want) in &files {
                let id = tree.walk(root, path.as_bytes()).unwrap();
                let mut got = vec![0; want.len() + 1];
                let n = tree.read_at(id, 0, &mut got).unwrap();
                prop_assert_eq!(&got[..n], &want[..]);
            }
            for dir in &dirs {
                let mut got = listing(&tree, tree.walk(root, dir.as_bytes()).unwrap());
                got.sort();
                let mut want = vec![".".to_owned(), "..".to_owned()];
            let prefix = format!("{dir}/");
            let inside = files.keys().filter_map(|file| file.strip_prefix(&prefix));
            want.extend(inside.map(str::to_owned));
                prop_assert_eq!(got, want);
            }
        }
        for path in files.keys() {
            tree.unlink(root, path.as_bytes()).unwrap();
        }
        for dir in &dirs {
            tree.rmdir(root, dir.as_bytes()).unwrap();
        }
        prop_assert_eq!(tree.used(), empty);
    }
}

#[test]
fn what_is_written_and_removed_is_in_the_books() {
    let mut tree = tree();
    let before = tree.used();
    let file = create(&mut tree, "/tmp/file");
    let empty = tree.used();
    assert!(empty > before, "{before} bytes, then {empty}");
    tree.write_at(file, 0, &[7; 5000]).unwrap();
    assert!(tree.used() >= empty + 5000, "{} bytes", tree.used());
    tree.release(file);
    tree.unlink(NodeId::ROOT, b"/tmp/file").unwrap();
    assert_eq!(tree.used(), before);
}

#[test]
fn a_tree_may_be_filled_to_its_capacity() {
    let with_room_for = |bytes| {
        let mut tree = Files::new(bytes);
        let made = tree.mkdir(NodeId::ROOT, b"/a", 0o755);
        (made.map(drop), tree.used())
    };
    let (_, enough) = with_room_for(1 << 20);
    assert_eq!(with_room_for(enough), (Ok(()), enough));
    assert_eq!(with_room_for(enough - 1).0, Err(NoSpace));
}

/// A file that grows gets room for twice its length, even if that leaves little for others. Only if
/// there is no such room, it gets what it needs.
#[test]
fn a_file_that_grows_takes_room_ahead_while_there_is_some() {
    let grown = |spare| {
        let mut tree = Files::new(1 << 20);
        let file = create(&mut tree, "/file");
        tree.resize(file, 1000).unwrap();
        let used = tree.used();

        let mut tree = Files::new(used + spare);
        let file = create(&mut tree, "/file");
        tree.resize(file, 1000).unwrap();
        let more = tree.resize(file, 1001).map(|()| tree.used() - used);
        (more, tree.read_at(file, 0, &mut [0; 2000]).unwrap())
    };
    assert_eq!(grown(1000), (Ok(1000), 1001));
    assert_eq!(grown(999), (Ok(1), 1001));
    assert_eq!(grown(1), (Ok(1), 1001));
    assert_eq!(grown(0), (Err(NoSpace), 1000));
}
