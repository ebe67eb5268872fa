//! The pictures: SVG, put together by hand, as two small ones need no library.
//!
//! [`growth`] has the cost of a hit over the number of probes, and [`kinds`] the cost of each kind.
//! Coordinates are those of the picture in pixels, from its upper left corner; only `Picture::y`
//! knows the vertical scale, which begins at 0.

use std::fmt::Write;

use test_protocol::Quantity;

use super::{Results, Unit, linux};

const WIDTH: f64 = 720.;
const HEIGHT: f64 = 400.;
/// Around the axes, for labels.
const LEFT: f64 = 70.;
const RIGHT: f64 = 20.;
const TOP: f64 = 50.;
const BOTTOM: f64 = 50.;
const OURS: &str = "#1f6feb";
const LINUX: &str = "#9a9a9a";

/// A picture with a linear vertical axis from 0 to `most`.
struct Picture {
    body: String,
    most: f64,
}

impl Picture {
    fn new(title: &str, unit: Unit, most: f64) -> Self {
        let mut picture = Self {
            body: String::new(),
            most: round_up(most),
        };
        picture.text(WIDTH / 2., 20., "middle", title);
        picture.text(LEFT, 40., "start", unit.per_call());
        for step in 0..=4 {
            let value = picture.most * f64::from(step) / 4.;
            let y = picture.y(value);
            picture.line(LEFT, y, WIDTH - RIGHT, y, "#dddddd");
            picture.text(LEFT - 8., y + 4., "end", &value.to_string());
        }
        for (n, (name, colour)) in [("ours", OURS), ("Linux 6.1", LINUX)].iter().enumerate() {
            let x = WIDTH - RIGHT - 190. + 80. * n as f64;
            picture.rect(x, 32., 10., 10., colour);
            picture.text(x + 14., 41., "start", name);
        }
        picture
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.most * (HEIGHT - TOP - BOTTOM)
    }

    /// Writing to a string cannot fail.
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{element}");
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) {
        self.add(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#
        ));
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"/>"
        ));
    }

    fn curve(&mut self, points: &[(f64, f64)], colour: &str) {
        let all: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.add(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            all.join(" ")
        ));
        for (x, y) in points {
            self.add(format_args!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#
            ));
        }
    }

    fn finish(self) -> String {
        format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" "#,
                r#"font-family="sans-serif" font-size="12">"#,
                "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n"
            ),
            WIDTH, HEIGHT, self.body
        )
    }
}

/// The next 1, 2, 4 or 8 times a power of ten, so that quarters of it are round.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.).log10().floor());
    [1., 2., 4., 8., 10.]
        .into_iter()
        .map(|factor| factor * power)
        .find(|limit| *limit >= value)
        .unwrap_or(value)
}

/// The cost of a hit against the number of other registered probes; none if that was not measured.
pub fn growth(results: &Results, unit: Unit) -> Option<String> {
    const PREFIX: &str = "k_int3_n";
    let rows: Vec<(&str, f64, f64)> = results
        .of(Quantity::Cost)
        .filter_map(|(name, cost)| {
            Some((
                name,
                name.strip_prefix(PREFIX)?.parse().ok()?,
                cost.as_f64(),
            ))
        })
        .collect();
    let last = rows
        .last()
        .map(|(_, others, _)| *others)
        .filter(|others| *others > 0.)?;
    // Logarithmic, with room for 0 at the left.
    let x = |others: f64| {
        let part = (others + 1.).log10() / (last + 1.).log10();
        LEFT + 20. + part * (WIDTH - LEFT - RIGHT - 60.)
    };
    let linux: Vec<(f64, f64)> = rows
        .iter()
        .filter(|_| unit == Unit::Instructions)
        .filter_map(|(name, others, _)| Some((*others, linux::figure(name)?.cost)))
        .collect();
    let costs = rows.iter().map(|(_, _, cost)| *cost);
    let most = costs
        .chain(linux.iter().map(|(_, cost)| *cost))
        .fold(0., f64::max);
    let mut picture = Picture::new(
        "A kprobe hit against the number of other probes",
        unit,
        most,
    );
    for (_, others, cost) in &rows {
        picture.text(
            x(*others),
            HEIGHT - BOTTOM + 18.,
            "middle",
            &others.to_string(),
        );
        let y = picture.y(*cost) - 8.;
        picture.text(x(*others), y, "middle", &format!("{cost:.0}"));
    }
    let place = |picture: &Picture, (others, cost): (f64, f64)| (x(others), picture.y(cost));
    let theirs: Vec<_> = linux.iter().map(|point| place(&picture, *point)).collect();
    let ours: Vec<_> = rows
        .iter()
        .map(|(_, others, cost)| place(&picture, (*others, *cost)))
        .collect();
    picture.curve(&theirs, LINUX);
    picture.curve(&ours, OURS);
    Some(picture.finish())
}

/// The cost of each kind of probe, as in the overhead table of Linux's documentation. None if no
/// kind was measured.
pub fn kinds(results: &Results, unit: Unit) -> Option<String> {
    const ROWS: [&str; 14] = [
        "base",
        "k_int3",
        "k_int3_post",
        "j_int3",
        "r_int3",
        "r_int3_entry",
        "kr_int3",
        "jr_int3",
        "k_opt",
        "r_opt",
        "r_opt_entry",
        "kr_opt",
        "r_2005_three",
        "r_2005_four",
    ];
    let rows: Vec<(&str, f64, Option<f64>)> = ROWS
        .iter()
        .filter_map(|name| {
            let linux = linux::figure(name).filter(|_| unit == Unit::Instructions);
            let cost = results.get(Quantity::Cost, name)?;
            Some((*name, cost.as_f64(), linux.map(|linux| linux.cost)))
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let most = rows
        .iter()
        .flat_map(|(_, ours, linux)| [Some(*ours), *linux])
        .flatten()
        .fold(0., f64::max);
    let mut picture = Picture::new("One call of a probed empty function", unit, most);
    let step = (WIDTH - LEFT - RIGHT) / rows.len() as f64;
    let width = step * 0.36;
    for (n, (name, ours, linux)) in rows.iter().enumerate() {
        let x = LEFT + step * (n as f64 + 0.12);
        let bars = [(Some(*ours), x, OURS), (*linux, x + width + 1., LINUX)];
        for (value, x, colour) in bars {
            let Some(value) = value else { continue };
            let y = picture.y(value);
            picture.rect(x, y, width, HEIGHT - BOTTOM - y, colour);
            picture.text(x + width / 2., y - 4., "middle", &format!("{value:.0}"));
        }
        // Long names on two levels, so that neighbours do not overlap.
        let level = 18. + 14. * (n % 2) as f64;
        picture.text(x + width, HEIGHT - BOTTOM + level, "middle", name);
    }
    Some(picture.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_hold_every_row() {
        let mut results = Results::default();
        results.add(concat!(
            "bench: cost base 7/1\nbench: cost k_int3 80/1\nbench: cost j_int3 300/1\n",
            "bench: cost k_int3_n0 80/1\nbench: cost k_int3_n1000 81/1\n",
        ));
        let kinds = kinds(&results, Unit::Instructions).unwrap();
        for text in [">base<", ">k_int3<", ">j_int3<", ">505<"] {
            assert!(kinds.contains(text), "{text} in {kinds}");
        }
        let growth = growth(&results, Unit::Cycles).unwrap();
        assert!(
            growth.contains(">1000<") && !growth.contains("NaN"),
            "{growth}"
        );
    }

    #[test]
    fn nothing_measured_is_no_picture() {
        assert_eq!(growth(&Results::default(), Unit::Cycles), None);
        assert_eq!(kinds(&Results::default(), Unit::Cycles), None);
    }

    #[test]
    fn axes_end_at_round_numbers() {
        let rounded: Vec<f64> = [0., 3., 79., 505., 1284.].map(round_up).to_vec();
        assert_eq!(rounded, [1., 4., 80., 800., 2000.]);
    }
}
