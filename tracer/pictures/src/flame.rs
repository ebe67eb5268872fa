//! A flame graph: call stacks as boxes on boxes.
//!
//! A box is a function in a place of the call tree. Its width is the number of the stacks that pass
//! through it; what it stands on called it. The file is one SVG with a script: a click on a box
//! shows it in the whole width, a click on the background shows all again, and a field finds
//! functions by a part of their names. Without scripts (in a README) the picture is the same, but
//! still.
//!
//! FLAME-1. Boxes that stand on the same box are sorted by name, so the picture depends on the
//!     stacks alone and not on their order.
//! FLAME-2. A colour depends on the name alone, so a function has the same one in all pictures.
//! FLAME-3. The script positions a box by `data-x` and `data-w`, in the unit of the stacks. So
//!     boxes keep their true sizes, although the widths on the screen are rounded.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    escape::Xml,
    model::{Stacks, Unit},
    names,
    units::{duration, grouped, percent},
};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const TOP: usize = 44;
const BOTTOM: usize = 12;
/// The height of a box, with the line below it.
const ROW: usize = 19;
/// The width of a letter. The font has a fixed width.
const LETTER: f64 = 7.2;
/// Narrower boxes are not drawn: they could not be seen, and there may be many.
const NARROWEST: f64 = 0.1;

const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");

/// How a flame graph is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flame {
    /// The outermost functions are at the top, and the flames hang down.
    pub icicle: bool,
    /// Without the script, for places that do not run one.
    pub still: bool,
}

/// The call tree. The first node is the root. A node names its callees by their numbers, because a
/// stack may be so deep that a tree of owners could not be dropped.
struct Tree<'a>(Vec<Node<'a>>);

/// A function in a place of the call tree.
#[derive(Default)]
struct Node<'a> {
    value: u64,
    callees: BTreeMap<&'a str, usize>,
}

/// Draws the stacks as SVG.
pub fn svg(stacks: &Stacks, options: Flame) -> String {
    let tree = Tree::new(stacks);
    let total = tree.0[0].value;
    let scale = (WIDTH - 2.0 * MARGIN) / total.max(1) as f64;
    let boxes = tree.boxes(NARROWEST / scale);
    let rows = boxes.iter().map(|one| one.depth).max().unwrap_or(0) + 1;
    let height = TOP + rows * ROW + BOTTOM;
    let mut svg = String::new();
    _ = write!(
        svg,
        "<svg class=\"flame\" xmlns=\"http://www.w3.org/2000/svg\" \
         viewBox=\"0 0 {WIDTH} {height}\" width=\"100%\" data-total=\"{}\" \
         role=\"img\" aria-label=\"{}\">\n\
         <style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"26\">{}</text>\n\
         <text class=\"found\" x=\"{}\" y=\"26\"></text>\n",
        total,
        Xml(&stacks.title),
        Xml(&stacks.title),
        WIDTH - MARGIN,
    );
    for one in &boxes {
        let row = if options.icicle {
            one.depth
        } else {
            rows - 1 - one.depth
        };
        let x = MARGIN + one.x as f64 * scale;
        let width = one.value as f64 * scale;
        let y = TOP + row * ROW;
        let name = one.name;
        _ = write!(
            svg,
            "<g data-x=\"{}\" data-w=\"{}\" data-d=\"{}\" data-s=\"{}\">\
             <title>{} ({}, {})</title>\
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{}\" fill=\"{}\"/>",
            one.x,
            one.value,
            one.depth,
            Xml(&names::short(name)),
            Xml(name),
            Xml(&stacks.unit.show(one.value)),
            percent(one.value, total),
            // A line of the background between two boxes, where there is room for one.
            (width - 0.5).max(width.min(0.5)),
            ROW - 1,
            colour(name),
        );
        let label = label(name, width);
        if !label.is_empty() {
            _ = write!(
                svg,
                "<text x=\"{:.2}\" y=\"{}\">{}</text>",
                x + 4.0,
                y + 13,
                Xml(&label)
            );
        }
        svg.push_str("</g>\n");
    }
    if !options.still {
        // The text of the script has neither `<` nor `&`, so it needs no escape in SVG or HTML.
        _ = writeln!(svg, "<script>{SCRIPT}</script>");
    }
    svg.push_str("</svg>\n");
    svg
}

struct Box<'a> {
    name: &'a str,
    depth: usize,
    x: u64,
    value: u64,
}

impl<'a> Tree<'a> {
    fn new(stacks: &'a Stacks) -> Self {
        let mut nodes = vec![Node::default()];
        for (frames, value) in &stacks.rows {
            let mut at = 0;
            nodes[at].value = nodes[at].value.saturating_add(*value);
            for frame in frames {
                let next = nodes.len();
                at = *nodes[at].callees.entry(frame).or_insert(next);
                if at == next {
                    nodes.push(Node::default());
                }
                nodes[at].value = nodes[at].value.saturating_add(*value);
            }
        }
        Self(nodes)
    }

    /// The boxes that are not narrower than `least`: a box, then those on it from left to right.
    fn boxes(&self, least: f64) -> Vec<Box<'a>> {
        let mut boxes = Vec::new();
        let mut waiting = vec![(0, "all", 0, 0)];
        while let Some((number, name, x, depth)) = waiting.pop() {
            let Node { value, callees } = &self.0[number];
            boxes.push(Box {
                name,
                depth,
                x,
                value: *value,
            });
            let mut behind: u64 = x;
            let first = waiting.len();
            for (name, &callee) in callees {
                let value = self.0[callee].value;
                if value as f64 >= least {
                    waiting.push((callee, name, behind, depth + 1));
                }
                behind = behind.saturating_add(value);
            }
            waiting[first..].reverse();
        }
        boxes
    }
}

impl Unit {
    /// A number with its unit.
    pub(crate) fn show(&self, value: u64) -> String {
        match self {
            Self::Count(things) => format!("{} {things}", grouped(value)),
            Self::Nanoseconds => duration(value),
        }
    }
}

/// As much of a name as fits into a box: all of it, else without the modules, else its beginning.
fn label(name: &str, width: f64) -> String {
    let letters = ((width - 8.0) / LETTER).max(0.0) as usize;
    if name.chars().count() <= letters {
        return name.into();
    }
    let short = names::short(name);
    match letters {
        _ if short.chars().count() <= letters => short,
        // One or two letters tell nothing.
        0..3 => String::new(),
        _ => short.chars().take(letters - 1).chain(['…']).collect(),
    }
}

/// From yellow to red, by the name.
fn colour(name: &str) -> String {
    // FNV-1a: small, and spread enough.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = hash ^ (hash >> 29);
    let hue = 8 + hash % 42;
    let light = 62 + (hash >> 8) % 12;
    format!("hsl({hue} 88% {light}%)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(rows: &[(&[&str], u64)]) -> Stacks {
        let owned = |&(frames, value): &(&[&str], u64)| {
            (
                frames.iter().map(|&frame| frame.to_owned()).collect(),
                value,
            )
        };
        Stacks {
            title: "Stacks at <vfs_write>".into(),
            unit: Unit::Count("hits".into()),
            rows: rows.iter().map(owned).collect(),
        }
    }

    /// Position, width, depth and title of each box.
    fn boxes(svg: &str) -> Vec<String> {
        let lines = svg.lines().filter(|line| line.starts_with("<g "));
        let part = |line: &str, before: &str, behind: &str| {
            let (_, rest) = line.split_once(before).expect("the mark before");
            rest.split_once(behind)
                .expect("the mark behind")
                .0
                .to_owned()
        };
        lines
            .map(|line| {
                let x = part(line, "data-x=\"", "\"");
                let width = part(line, "data-w=\"", "\"");
                let depth = part(line, "data-d=\"", "\"");
                format!("{x} {width} {depth} {}", part(line, "<title>", "</title>"))
            })
            .collect()
    }

    const ROWS: [(&[&str], u64); 4] = [
        (&["main", "b"], 30),
        (&["main", "a", "<T as X>::f"], 10),
        (&["main", "b", "c"], 55),
        (&["other"], 5),
    ];

    #[test]
    fn boxes_stand_on_their_callers_with_the_width_of_their_stacks() {
        let svg = svg(&stacks(&ROWS), Flame::default());
        assert_eq!(
            boxes(&svg),
            [
                "0 100 0 all (100 hits, 100.0 %)",
                "0 95 1 main (95 hits, 95.0 %)",
                "0 10 2 a (10 hits, 10.0 %)",
                "0 10 3 &lt;T as X&gt;::f (10 hits, 10.0 %)",
                "10 85 2 b (85 hits, 85.0 %)",
                "10 55 3 c (55 hits, 55.0 %)",
                "95 5 1 other (5 hits, 5.0 %)",
            ]
        );
        // 4 rows: the outermost is the lowest one.
        let lowest = format!("y=\"{}\" width=\"1179.50\"", TOP + 3 * ROW);
        assert!(svg.contains(&lowest), "{svg}");
        assert!(svg.contains("Stacks at &lt;vfs_write&gt;"));
    }

    #[test]
    fn an_icicle_hangs_from_its_outermost_function_and_a_still_picture_has_no_script() {
        let drawn = |icicle, still| svg(&stacks(&ROWS), Flame { icicle, still });
        let outermost = |row: usize| format!("y=\"{}\" width=\"1179.50\"", TOP + row * ROW);
        assert!(drawn(true, false).contains(&outermost(0)));
        assert!(drawn(false, false).contains(&outermost(3)));
        for icicle in [false, true] {
            assert!(drawn(icicle, false).contains("<script>"));
            assert!(!drawn(icicle, true).contains("<script>"));
        }
    }

    #[test]
    fn the_order_of_the_stacks_does_not_matter() {
        let mut rows = ROWS;
        rows.reverse();
        let (one, two) = (stacks(&ROWS), stacks(&rows));
        assert_eq!(svg(&one, Flame::default()), svg(&two, Flame::default()));
    }

    #[test]
    fn a_label_is_no_wider_than_its_box() {
        let name = "kernel::fs::vfs::vfs_write";
        assert_eq!(label(name, 8.1 + 26.0 * LETTER), name);
        assert_eq!(label(name, 7.9 + 26.0 * LETTER), "vfs_write");
        assert_eq!(label(name, 8.1 + 5.0 * LETTER), "vfs_…");
        assert_eq!(label(name, 8.1 + 2.0 * LETTER), "");
        assert_eq!(label("größe", 8.1 + 4.0 * LETTER), "grö…");
    }

    #[test]
    fn no_stacks_are_a_picture_too() {
        let svg = svg(&stacks(&[]), Flame::default());
        assert_eq!(boxes(&svg), ["0 0 0 all (0 hits, 0 %)"]);
    }

    #[test]
    fn boxes_that_nobody_could_see_are_left_out() {
        let svg = svg(
            &stacks(&[(&["a"], 1_000_000), (&["b"], 1)]),
            Flame::default(),
        );
        assert_eq!(boxes(&svg).len(), 2);
    }

    #[test]
    fn a_deep_stack_is_drawn() {
        let names: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
        let frames: Vec<&str> = names.iter().map(String::as_str).collect();
        let svg = svg(&stacks(&[(&frames, 1)]), Flame::default());
        assert_eq!(boxes(&svg).len(), 20_001);
    }

    #[test]
    fn the_script_needs_no_escape() {
        assert!(!SCRIPT.contains(['<', '&']));
        assert!(!STYLE.contains(['<', '&']));
    }
}
