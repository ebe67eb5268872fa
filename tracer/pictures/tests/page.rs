//! Opens the page and the flame graph in a browser, and reads what is there after the scripts ran.
//!
//! The browser is Chromium, if there is one; otherwise its tests are left out, by name.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::Mutex,
};

use libtest_mimic::{Arguments, Failed, Trial};
use pictures::{
    Builder, Timeline,
    flame::{self, Flame},
    html::{self, Page},
    model::{Books, Stacks, Unit},
};

static LEFT_OUT: Mutex<Vec<&str>> = Mutex::new(Vec::new());

type Test = fn(&Browser) -> Result<(), Failed>;

fn main() -> ExitCode {
    let tests: [(&'static str, Test); 6] = [
        (
            "the_page_counts_calls_exactly",
            the_page_counts_calls_exactly,
        ),
        (
            "the_page_draws_what_is_in_view",
            the_page_draws_what_is_in_view,
        ),
        (
            "a_click_on_a_call_shows_its_values",
            a_click_on_a_call_shows_its_values,
        ),
        (
            "the_heat_map_shows_each_call_at_its_place",
            the_heat_map_shows_each_call_at_its_place,
        ),
        (
            "text_of_the_trace_is_no_markup",
            text_of_the_trace_is_no_markup,
        ),
        (
            "the_flame_graph_zooms_and_finds",
            the_flame_graph_zooms_and_finds,
        ),
    ];
    let trial = |(name, test): (&'static str, Test)| {
        Trial::test(name, move || match Browser::find() {
            Some(browser) => test(&browser),
            None => {
                LEFT_OUT
                    .lock()
                    .map_err(|error| error.to_string())?
                    .push(name);
                Ok(())
            }
        })
    };
    let conclusion = libtest_mimic::run(&Arguments::from_args(), tests.map(trial).into());
    for name in LEFT_OUT.lock().iter().flat_map(|names| names.iter()) {
        eprintln!("left out: {name}: there is no chromium on the PATH");
    }
    conclusion.exit_code()
}

struct Browser(PathBuf);

impl Browser {
    fn find() -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let mut places =
            std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
        places.find(|place| place.is_file()).map(Self)
    }

    /// The document after its scripts ran. `script` runs after them.
    fn document(&self, name: &str, text: &str, script: &str) -> Result<String, Failed> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("page.html");
        // A browser without a window draws no frames by itself. Timers follow the time budget.
        let frames = "window.requestAnimationFrame = (draw) => setTimeout(draw, 0);";
        std::fs::write(&file, format!("{text}<script>{frames}{script}</script>"))?;
        let output = Command::new(&self.0)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .args([
                "--disable-sync",
                "--disable-quic",
                "--window-size=1280,900",
                // The page is shown when nothing is left to do, in its own time.
                "--virtual-time-budget=5000",
                "--dump-dom",
            ])
            .arg(format!(
                "--user-data-dir={}",
                folder.join("profile").display()
            ))
            .arg(&file)
            .stdin(Stdio::null())
            .output()?;
        let document = String::from_utf8_lossy(&output.stdout).into_owned();
        match document.contains("</html>") {
            true => Ok(document),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
        }
    }
}

/// The text between two others.
fn between<'a>(text: &'a str, before: &str, behind: &str) -> Result<&'a str, Failed> {
    let rest = text.split_once(before).map(|(_, rest)| rest);
    let part = rest.and_then(|rest| rest.split_once(behind));
    let part = part.map(|(part, _)| part);
    part.ok_or_else(|| format!("{before:?} and {behind:?} are not in:\n{text}").into())
}

fn page_of(timeline: Timeline) -> String {
    html::page(&Page {
        title: "A run".into(),
        timeline: Some(timeline),
        ..Page::default()
    })
}

fn the_page_counts_calls_exactly(browser: &Browser) -> Result<(), Failed> {
    let mut builder = Builder::new();
    for number in 0..1234_u64 {
        let time = 5_000_000 + number * 10_000;
        builder.entry(time, 1, 0, "outer", Vec::new());
        builder.entry(time + 100, 1, 0, "inner", Vec::new());
        builder.exit(time + 100 + number, 1, 0, "inner", None);
        builder.exit(time + 2000, 1, 0, "outer", None);
    }
    // Two calls do not return. The one that the second makes does.
    builder.entry(30_000_000, 2, 1, "last", Vec::new());
    builder.entry(40_000_000, 3, 1, "last", Vec::new());
    builder.entry(50_000_000, 3, 1, "in last", Vec::new());
    builder.exit(50_000_700, 3, 1, "in last", None);
    builder.entry(90_000_000, 2, 1, "last", Vec::new());
    let document = browser.document("exact", &page_of(builder.finish()), "")?;
    let table = between(&document, "<table id=\"functions\">", "</table>")?;
    let mut rows = String::new();
    for row in table.split("<tr>").filter(|row| row.contains("<code>")) {
        let values = row.split("data-value=\"").skip(1);
        let values = values.map(|rest| rest.split('"').next().unwrap_or_default());
        let name = between(row, "<code>", "</code>")?;
        writeln!(rows, "{name} {}", values.collect::<Vec<_>>().join(" "))?;
    }
    // Calls, total, own, mean, median, 99 %, longest; sorted by own time. What has not returned has
    // no time.
    let inner: u64 = (0..1234).sum();
    let outer = 1234 * 2000;
    let own = outer - inner;
    let expected = format!(
        "outer 1234 {outer} {own} 2000 2000 2000 2000\n\
         inner 1234 {inner} {inner} 616.5 617 1221 1233\n\
         in last 1 700 700 700 700 700 700\n\
         last 3\n"
    );
    if rows != expected {
        return Err(format!("the table is\n{rows}instead of\n{expected}").into());
    }
    Ok(())
}

/// 100,000 calls: all of them are in the table, and a few thousand are drawn. A double click fills
/// the view with one call, and then only that one and its processor are drawn.
fn the_page_draws_what_is_in_view(browser: &Browser) -> Result<(), Failed> {
    let mut builder = Builder::new();
    for number in 0..100_000_u64 {
        let time = number * 1000;
        builder.entry(
            time,
            1,
            0,
            "f",
            vec![("n".into(), (number % 100).to_string())],
        );
        builder.exit(time + 500, 1, 0, "f", Some("Ok".into()));
    }
    let html = page_of(builder.finish());
    let script = "
        document.body.dataset.all = canvas.dataset.drawn;
        const place = canvas.getBoundingClientRect();
        const init = { clientX: place.left + 400, clientY: place.top + 68 };
        canvas.dispatchEvent(new MouseEvent('dblclick', init));
        requestAnimationFrame(() => {
          document.body.dataset.near = canvas.dataset.drawn;
          document.body.dataset.visible = canvas.dataset.visible;
          document.getElementById('fit').click();
        });";
    let document = browser.document("many", &html, script)?;
    let table = between(&document, "<table id=\"functions\">", "</table>")?;
    let calls = between(table, "data-value=\"", "\"")?;
    let all: u32 = between(&document, "data-all=\"", "\"")?.parse()?;
    let near: u32 = between(&document, "data-near=\"", "\"")?.parse()?;
    let visible = between(&document, "data-visible=\"", "\"")?;
    if calls != "100000" || !(500..5000).contains(&all) || near != 2 || visible != "550" {
        let found = format!("{calls} calls, {all} drawn, {near} near, {visible} ns visible");
        return Err(found.into());
    }
    Ok(())
}

fn a_click_on_a_call_shows_its_values(browser: &Browser) -> Result<(), Failed> {
    let mut builder = Builder::new();
    builder.task(7, 7, "writer");
    builder.entry(1000, 7, 0, "outer", vec![("count".into(), "12".into())]);
    builder.entry(1500, 7, 0, "inner", vec![("text".into(), "größe".into())]);
    builder.exit(2750, 7, 0, "inner", Some("Err(Badf)".into()));
    builder.exit(3000, 7, 1, "outer", Some("Ok(12)".into()));
    // Below the axis are the tracks of two processors, then the task with two rows.
    let script = "
        canvas.setPointerCapture = () => {};
        const place = canvas.getBoundingClientRect();
        const click = (part, y) => {
          const clientX = place.left + 190 + (place.width - 190) * part;
          const init = { clientX, clientY: place.top + y, pointerId: 1 };
          canvas.dispatchEvent(new PointerEvent('pointerdown', init));
          canvas.dispatchEvent(new PointerEvent('pointerup', init));
          const panel = document.getElementById('chosen');
          const values = Array.from(panel.querySelectorAll('dt, dd')).map((one) => one.textContent);
          const name = panel.querySelector('b');
          return (name ? name.textContent : 'none') + ' ' + values.join(' ');
        };
        const found = [click(0.5, 96), click(0.1, 116), click(0.5, 116)];
        document.body.dataset.found = found.join(', ');";
    let document = browser.document("click", &page_of(builder.finish()), script)?;
    let found = between(&document, "data-found=\"", "\"")?;
    let expected = "outer count 12 result Ok(12) took 2.00 µs itself 750 ns began at 0 ns \
                    task writer (7) CPU 0 → 1, none , \
                    inner text größe result Err(Badf) took 1.25 µs itself 1.25 µs \
                    began at 500 ns task writer (7) CPU 0";
    if found != expected {
        return Err(format!("{found} instead of {expected}").into());
    }
    Ok(())
}

/// 1000 calls that become slower: the cells have all of them, later ones are to the right, slower
/// ones above.
fn the_heat_map_shows_each_call_at_its_place(browser: &Browser) -> Result<(), Failed> {
    let mut builder = Builder::new();
    for number in 0..1000_u64 {
        let time = number * 1_000_000;
        let length = if number < 900 { 100 } else { 500_000 };
        builder.entry(time, 1, 0, "f", Vec::new());
        builder.exit(time + length, 1, 0, "f", None);
    }
    let timeline = builder.finish();
    let html = html::page(&Page {
        heat_maps: timeline.latency_maps(100, 8),
        timeline: Some(timeline),
        ..Page::default()
    });
    let script = "
        const cells = Array.from(document.querySelectorAll('#heat svg rect'));
        const shown = cells.filter((cell) => cell.querySelector('title'));
        const count = (cell) => parseInt(cell.querySelector('title').textContent);
        const all = shown.reduce((sum, cell) => sum + count(cell), 0);
        const box = (cell) => cell.getBoundingClientRect();
        const [first, last] = [box(shown[0]), box(shown[shown.length - 1])];
        const right = last.left > first.left, above = last.bottom <= first.top;
        const seen = shown.every((cell) => box(cell).width > 1 && box(cell).height > 5);
        document.body.dataset.found = [shown.length, all, right, above, seen].join(' ');";
    let document = browser.document("heat", &html, script)?;
    let found = between(&document, "data-found=\"", "\"")?;
    // The 90 columns of the fast calls, and the 10 of the slow ones.
    if found != "100 1000 true true true" && found != "101 1000 true true true" {
        return Err(format!("{found}: cells, calls, right, above, visible").into());
    }
    Ok(())
}

fn text_of_the_trace_is_no_markup(browser: &Browser) -> Result<(), Failed> {
    let nasty = "</script><b id=\"nasty\">'&\u{2028}\u{1}\\";
    let mut builder = Builder::new();
    builder.task(1, 1, nasty);
    builder.entry(10, 1, 0, nasty, vec![(nasty.into(), nasty.into())]);
    builder.instant(15, 1, 0, nasty, vec![(nasty.into(), nasty.into())]);
    builder.counter(16, nasty, nasty, 1.0);
    builder.lost(nasty, 1);
    builder.exit(20, 1, 0, nasty, Some(nasty.into()));
    let html = html::page(&Page {
        title: nasty.into(),
        program: nasty.into(),
        facts: vec![(nasty.into(), nasty.into())],
        books: vec![Books {
            probe: nasty.into(),
            ..Books::default()
        }],
        warnings: vec![nasty.into()],
        output: nasty.into(),
        stacks: vec![Stacks {
            title: nasty.into(),
            unit: Unit::Count(nasty.into()),
            rows: vec![(vec![nasty.into()], 1)],
        }],
        histograms: Vec::new(),
        heat_maps: Vec::new(),
        timeline: Some(builder.finish()),
    });
    let script = "
        const found = document.querySelectorAll('#nasty').length;
        const name = document.querySelector('#functions code').textContent;
        document.body.dataset.found = found + ' ' + name.length;";
    let document = browser.document("nasty", &html, script)?;
    let found = between(&document, "data-found=\"", "\"")?;
    let expected = format!("0 {}", nasty.chars().count());
    if found != expected {
        return Err(format!("{found} instead of {expected}").into());
    }
    Ok(())
}

fn the_flame_graph_zooms_and_finds(browser: &Browser) -> Result<(), Failed> {
    let row = |frames: &[&str], value| {
        (
            frames
                .iter()
                .map(|&frame| frame.to_owned())
                .collect::<Vec<_>>(),
            value,
        )
    };
    let stacks = Stacks {
        title: "Stacks".into(),
        unit: Unit::Count("hits".into()),
        rows: vec![
            row(&["main", "a"], 60),
            row(&["main", "b", "<T as X>::f"], 30),
            row(&["other", "b"], 10),
        ],
    };
    let svg = flame::svg(&stacks, Flame::default());
    let script = "
        const boxes = Array.from(document.querySelectorAll('svg g'));
        const width = (name) => {
          const box = boxes.find((box) => box.textContent.startsWith(name));
          if (box.style.display === 'none') return 'hidden';
          return Math.round(box.querySelector('rect').getAttribute('width'));
        };
        const widths = () => ['main', 'a (', 'b (30', 'other'].map(width).join(' ');
        const before = widths();
        const b = boxes.find((box) => box.textContent.startsWith('b (30'));
        b.dispatchEvent(new MouseEvent('click'));
        const zoomed = widths();
        document.querySelector('svg .back').dispatchEvent(new MouseEvent('click'));
        const after = widths();
        const input = document.querySelector('svg input');
        input.value = 'B';
        input.dispatchEvent(new Event('input'));
        const found = document.querySelector('svg .found').textContent;
        document.body.dataset.found = [before, zoomed, after, found].join(', ');";
    let html = format!("<!doctype html><html><body>{svg}</body></html>");
    let document = browser.document("flame", &html, script)?;
    let found = between(&document, "data-found=\"", "\"")?;
    let widths = "1062 708 354 118";
    let expected = format!("{widths}, 1180 hidden 1180 hidden, {widths}, 40.0 % found");
    if found != expected {
        return Err(format!("{found} instead of {expected}").into());
    }
    Ok(())
}
