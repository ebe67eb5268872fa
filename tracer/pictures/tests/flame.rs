//! The picture in the tree is what the code draws.

use std::path::Path;

use pictures::{
    flame::{self, Flame},
    model::{Stacks, Unit},
};

/// After a change of the drawing, look at the new picture: run with `PICTURES_WRITE=1`, and open
/// `tests/sample.svg`.
#[test]
fn the_sample_is_what_the_code_draws() {
    let folded = include_str!("sample.folded");
    let hits = Unit::Count("hits".into());
    let stacks = Stacks::from_folded("Call stacks at vfs_write", hits, folded);
    let svg = flame::svg(&stacks, Flame::default());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sample.svg");
    if std::env::var_os("PICTURES_WRITE").is_some() {
        std::fs::write(&file, &svg).expect("the picture is written");
    }
    let committed = std::fs::read_to_string(&file).expect("the picture is in the tree");
    assert_eq!(
        svg, committed,
        "run with PICTURES_WRITE=1, and look at the new picture"
    );
}
