// Draws the timeline, and counts the calls of each function.
(function () {
  "use strict";
  const element = (id) => document.getElementById(id);

  // ---- Light and dark.
  const root = document.documentElement;
  element("theme").addEventListener("click", () => {
    const dark = root.style.colorScheme
      ? root.style.colorScheme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.style.colorScheme = dark ? "light" : "dark";
    root.dispatchEvent(new Event("theme"));
  });

  const block = element("data");
  if (!block) return;
  const data = JSON.parse(block.textContent);
  const texts = data.texts, tasks = data.tasks, columns = data.calls;
  const count = columns.task.length;

  // ---- The columns as numbers: begins add up in each task.
  const begin = new Float64Array(count), end = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    const same = i > 0 && columns.task[i] === columns.task[i - 1];
    begin[i] = columns.begin[i] + (same ? begin[i - 1] : 0);
    end[i] = begin[i] + columns.length[i];
  }

  // As `units.rs` does.
  function duration(ns) {
    if (ns < 1000) return Math.round(ns) + " ns";
    let value = ns / 1000, unit = 0;
    while (value >= 999.5 && unit < 2) { value /= 1000; unit++; }
    const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return value.toFixed(digits) + " " + ["µs", "ms", "s"][unit];
  }
  const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");

  // ---- The table of functions.
  const own = Float64Array.from(columns.length);
  {
    let callers = [];
    for (let i = 0; i < count; i++) {
      if (i === 0 || columns.task[i] !== columns.task[i - 1]) callers = [];
      callers.length = Math.min(callers.length, columns.depth[i]);
      if (callers.length) {
        const caller = callers[callers.length - 1];
        own[caller] = Math.max(0, own[caller] - columns.length[i]);
      }
      callers.push(i);
    }
  }
  const functions = new Map();
  for (let i = 0; i < count; i++) {
    const number = columns.function[i];
    let one = functions.get(number);
    if (!one) {
      one = { name: texts[number], calls: 0, total: null, own: null, lengths: [] };
      functions.set(number, one);
    }
    one.calls++;
    // Nobody knows the time of a call that has not returned.
    if (columns.seen[i] !== 3) {
      one.total += columns.length[i];
      one.own += own[i];
    }
    if (columns.seen[i] === 0) one.lengths.push(columns.length[i]);
  }
  const rows = Array.from(functions.values());
  for (const one of rows) {
    one.lengths.sort((a, b) => a - b);
    const all = one.lengths.length;
    const at = (part) => all ? one.lengths[Math.min(all - 1, Math.floor(all * part))] : null;
    one.mean = all ? one.lengths.reduce((sum, length) => sum + length, 0) / all : null;
    one.median = at(0.5);
    one.slow = at(0.99);
    one.most = at(1);
  }
  const shown = [
    ["name", "Function"], ["calls", "Calls"], ["total", "Total"], ["own", "Own"],
    ["mean", "Mean"], ["median", "Median"], ["slow", "99 %"], ["most", "Longest"],
  ];
  let order = "own";
  const MOST_ROWS = 500;
  function table() {
    const compare = order === "name"
      ? (a, b) => a.name < b.name ? -1 : 1
      : (a, b) => (b[order] || 0) - (a[order] || 0) || (a.name < b.name ? -1 : 1);
    rows.sort(compare);
    const all = rows.reduce((sum, one) => sum + one.own, 0) || 1;
    const body = document.createElement("tbody");
    for (const one of rows.slice(0, MOST_ROWS)) {
      const row = body.insertRow();
      for (const [key] of shown) {
        const cell = row.insertCell(), value = one[key];
        if (key === "name") {
          cell.appendChild(document.createElement("code")).textContent = value;
          continue;
        }
        cell.className = "number";
        if (value === null) { cell.textContent = "–"; continue; }
        cell.dataset.value = value;
        cell.textContent = key === "calls" ? grouped(value) : duration(value);
      }
      const share = row.insertCell();
      share.className = "share";
      const bar = share.appendChild(document.createElement("i"));
      bar.style.width = (110 * one.own / all).toFixed(1) + "px";
      bar.title = (100 * one.own / all).toFixed(1) + " % of the time";
    }
    const head = document.createElement("thead"), line = head.insertRow();
    for (const [key, title] of shown) {
      const cell = line.appendChild(document.createElement("th"));
      cell.textContent = title;
      cell.className = key === order ? "by" : "";
      cell.addEventListener("click", () => { order = key; table(); });
    }
    line.appendChild(document.createElement("th"));
    element("functions").replaceChildren(head, body);
    if (rows.length > MOST_ROWS) {
      const note = body.insertRow().insertCell();
      note.colSpan = shown.length + 1;
      note.textContent = grouped(rows.length - MOST_ROWS) + " more";
    }
  }
  table();

  // ---- Tracks, from top to bottom. A task has a row for each depth.
  const ROW = 20, GAP = 8, AXIS = 26, LEFT = 190;
  const tracks = [];
  if (data.runs.length) {
    for (let cpu = 0; cpu < data.cpus; cpu++) {
      const runs = data.runs.filter((run) => run[0] === cpu);
      tracks.push({ label: "CPU " + cpu, runs, height: ROW });
    }
  }
  for (const [name, unit, samples] of data.counters) {
    const values = samples.map((sample) => sample[1]);
    const most = values.reduce((a, b) => Math.max(a, b), 0);
    const smallest = values.reduce((a, b) => Math.min(a, b), Infinity);
    // From zero on, unless that would flatten the line.
    const least = smallest > most / 2 ? smallest : Math.min(0, smallest);
    const below = least.toLocaleString("en") + " to " + most.toLocaleString("en") + " " + unit;
    tracks.push({ label: name, below, samples, least, most, height: 2 * ROW });
  }
  const byTask = tasks.map(([tid, name]) => {
    const track = { label: name, note: String(tid), levels: [], instants: [], height: ROW };
    tracks.push(track);
    return track;
  });
  for (let i = 0; i < count; i++) {
    const levels = byTask[columns.task[i]].levels, depth = columns.depth[i];
    while (levels.length <= depth) levels.push([]);
    levels[depth].push(i);
  }
  for (const instant of data.instants) byTask[instant[0]].instants.push(instant);
  for (const track of byTask) {
    track.instants.sort((a, b) => a[1] - b[1]);
    track.height = Math.max(1, track.levels.length) * ROW;
  }
  let tall = AXIS + GAP / 2;
  for (const track of tracks) { track.y = tall; tall += track.height + GAP; }

  // ---- The view: times from `from` on, `scale` pixels for a nanosecond.
  const view = element("view"), canvas = element("canvas"), pen = canvas.getContext("2d");
  const whole = Math.max(1, data.length);
  let from = 0, visible = whole, chosen = -1, sought = "", width = 0, height = 0, scale = 1;
  element("tall").style.height = tall + "px";
  view.style.height = Math.max(120, Math.min(tall + 2, innerHeight * 0.7)) + "px";

  const hues = new Map();
  function hue(text) {
    let value = hues.get(text);
    if (value === undefined) {
      value = 7;
      for (let i = 0; i < text.length; i++) value = (value * 31 + text.charCodeAt(i)) >>> 0;
      value = (value * 2654435761 >>> 8) % 360;
      hues.set(text, value);
    }
    return value;
  }
  let ink, faint, line, card, accent, dark;
  function colours() {
    const probe = document.createElement("i");
    document.body.appendChild(probe);
    const resolve = (name) => {
      probe.style.color = "var(" + name + ")";
      return getComputedStyle(probe).color;
    };
    [ink, faint, line, card, accent] = ["--ink", "--faint", "--line", "--card", "--accent"]
      .map(resolve);
    probe.remove();
    // The card is darker than its text where the page is dark.
    const sum = (text) => text.match(/\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);
    dark = sum(card) < sum(ink);
  }
  const fill = (text) => dark ? `hsl(${hue(text)} 38% 36%)` : `hsl(${hue(text)} 68% 78%)`;

  const FONT = "12px system-ui, 'DejaVu Sans', sans-serif";
  let letter = 7;
  // As `names.rs` does: without the modules.
  const short = (text) => text.replace(/\b(?:[a-z_]\w*::)+(?=[A-Za-z_])/g, "");
  function cut(text, room) {
    const letters = Math.floor(room / letter);
    if (text.length <= letters) return text;
    text = short(text);
    if (text.length <= letters) return text;
    // Of `<File as Read>::read` the end tells more than the beginning.
    text = text.slice(text.lastIndexOf(">::") + 1).replace(/^::/, "");
    if (text.length <= letters) return text;
    return letters < 3 ? "" : text.slice(0, letters - 1) + "…";
  }

  let drawn = 0;
  function box(x1, x2, y, text, mark) {
    x1 = Math.max(LEFT, x1);
    x2 = Math.min(width, x2);
    const wide = Math.max(1, x2 - x1 - 0.5);
    pen.fillStyle = fill(text);
    pen.globalAlpha = sought && !text.toLowerCase().includes(sought) ? 0.25 : 1;
    pen.fillRect(x1, y, wide, ROW - 2);
    if (mark) {
      pen.strokeStyle = ink;
      pen.lineWidth = 1.5;
      pen.strokeRect(x1 + 0.75, y + 0.75, Math.max(1, wide - 1.5), ROW - 3.5);
    }
    if (wide > 20) {
      pen.fillStyle = ink;
      pen.fillText(cut(text, wide - 8), x1 + 4, y + ROW / 2, wide - 6);
    }
    pen.globalAlpha = 1;
    drawn++;
  }
  const x = (time) => LEFT + (time - from) * scale;

  // The first position of a sorted list whose key is not below a value.
  function first(list, key, value) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (key(list[middle]) < value) low = middle + 1; else high = middle;
    }
    return low;
  }

  function draw() {
    const ratio = devicePixelRatio || 1;
    width = view.clientWidth;
    height = view.clientHeight;
    const wide = Math.round(width * ratio), high = Math.round(height * ratio);
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.width = width + "px";
      canvas.style.height = height + "px";
    }
    scale = (width - LEFT) / visible;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = FONT;
    pen.textBaseline = "middle";
    letter = pen.measureText("abcdefghijklmnopqrstuvwxyz_").width / 27;
    pen.fillStyle = card;
    pen.fillRect(0, 0, width, height);
    drawn = 0;
    const top = view.scrollTop, to = from + visible;
    axis(false);
    for (const track of tracks) {
      const y = track.y - top;
      if (y + track.height < AXIS || y > height) continue;
      pen.fillStyle = line;
      pen.fillRect(0, y - GAP / 2, width, 1);
      if (track.runs) drawRuns(track, y, to);
      if (track.samples) drawCounter(track, y, to);
      if (track.levels) drawCalls(track, y, to);
      pen.fillStyle = card;
      pen.fillRect(0, y - GAP / 2 + 1, LEFT - 4, track.height + GAP - 1);
      pen.fillStyle = ink;
      pen.fillText(cut(track.label, LEFT - 20 - (track.note || "").length * 8), 12, y + ROW / 2);
      pen.fillStyle = faint;
      pen.fillText(cut(track.below || "", LEFT - 16), 12, y + ROW * 1.4);
      pen.textAlign = "right";
      pen.fillText(track.note || "", LEFT - 12, y + ROW / 2);
      pen.textAlign = "left";
    }
    axis(true);
    // For readers of the page that do not see: how much is drawn, and which times.
    canvas.dataset.drawn = drawn;
    canvas.dataset.from = Math.round(from);
    canvas.dataset.visible = Math.round(visible);
  }

  function drawRuns(track, y, to) {
    const list = track.runs;
    let pixel = -1;
    for (let i = Math.max(0, first(list, (run) => run[2], from) - 1); i < list.length; i++) {
      const [, task, start, length] = list[i];
      if (start > to) break;
      if (start + length < from) continue;
      const right = x(start + length);
      if (right - x(start) < 1 && Math.floor(right) === pixel) continue;
      pixel = Math.floor(right);
      box(x(start), right, y, tasks[task][1], false);
    }
  }

  function drawCalls(track, y, to) {
    track.levels.forEach((list, depth) => {
      const above = y + depth * ROW;
      if (above + ROW < AXIS || above > height) return;
      let pixel = -1;
      const start = Math.max(0, first(list, (call) => begin[call], from) - 1);
      for (let i = start; i < list.length; i++) {
        const call = list[i];
        if (begin[call] > to) break;
        if (end[call] < from) continue;
        const left = x(begin[call]), right = x(end[call]);
        // Of the calls in one pixel the first one is drawn.
        if (right - left < 1 && Math.floor(right) === pixel && call !== chosen) continue;
        pixel = Math.floor(right);
        box(left, right, above, texts[columns.function[call]], call === chosen);
        if (columns.seen[call] === 3) {
          pen.fillStyle = accent;
          pen.fillRect(Math.min(width, right) - 3, above, 3, ROW - 2);
        }
      }
    });
    let pixel = -1;
    for (let i = first(track.instants, (one) => one[1], from); i < track.instants.length; i++) {
      const at = x(track.instants[i][1]);
      if (at > width) break;
      if (Math.floor(at) === pixel) continue;
      pixel = Math.floor(at);
      pen.fillStyle = accent;
      pen.beginPath();
      pen.moveTo(at, y - 3);
      pen.lineTo(at + 4, y + 3);
      pen.lineTo(at, y + 9);
      pen.lineTo(at - 4, y + 3);
      pen.fill();
    }
  }

  function drawCounter(track, y, to) {
    const span = track.most - track.least || 1, list = track.samples;
    const high = track.height - 6;
    const level = (value) => y + 3 + high - (value - track.least) / span * high;
    let i = Math.max(0, first(list, (one) => one[0], from) - 1);
    pen.strokeStyle = accent;
    pen.lineWidth = 1.5;
    pen.beginPath();
    let last = null, pixel = -1;
    for (; i < list.length; i++) {
      const at = Math.max(LEFT, x(list[i][0]));
      if (last !== null && Math.floor(at) === pixel && i + 1 < list.length) {
        last = list[i][1];
        continue;
      }
      pixel = Math.floor(at);
      if (last === null) pen.moveTo(at, level(list[i][1])); else pen.lineTo(at, level(last));
      pen.lineTo(at, level(list[i][1]));
      last = list[i][1];
      if (list[i][0] > to) break;
    }
    if (last !== null) pen.lineTo(Math.min(width, x(whole)), level(last));
    pen.stroke();
  }

  // The lines of the axis go below the tracks, its numbers above them.
  function axis(numbers) {
    const about = visible * 120 / Math.max(1, width - LEFT);
    const ten = Math.pow(10, Math.floor(Math.log10(Math.max(1, about))));
    const step = [1, 2, 5, 10].map((digit) => digit * ten).find((size) => size >= about) || ten;
    if (numbers) {
      pen.fillStyle = card;
      pen.fillRect(0, 0, width, AXIS - 2);
      pen.fillStyle = line;
      pen.fillRect(0, AXIS - 2, width, 1);
    }
    for (let time = Math.ceil(from / step) * step; time <= from + visible; time += step) {
      const at = x(time);
      pen.fillStyle = numbers ? faint : line;
      if (numbers) pen.fillText(tick(time, step), at + 4, AXIS / 2 - 1);
      else pen.fillRect(at, 0, 1, height);
    }
  }
  // Neighbours differ by `step`, so there are as many digits as that needs.
  function tick(time, step) {
    const [unit, name] = visible < 2e3 ? [1, "ns"] : visible < 2e6 ? [1e3, "µs"]
      : visible < 2e9 ? [1e6, "ms"] : [1e9, "s"];
    const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
    return (time / unit).toFixed(digits) + " " + name;
  }

  let waiting = false;
  function later() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }
  function show(start, length) {
    visible = Math.min(whole, Math.max(20, length));
    from = Math.min(Math.max(0, start), whole - visible);
    later();
  }
  const zoom = (factor, at) => show(at - (at - from) * factor, visible * factor);
  const middle = () => from + visible / 2;

  // ---- The reader's actions.
  function callAt(event) {
    const place = canvas.getBoundingClientRect();
    const left = event.clientX - place.left, above = event.clientY - place.top + view.scrollTop;
    const track = tracks.find((one) => above >= one.y && above < one.y + one.height);
    if (!track || !track.levels || left < LEFT) return -1;
    const list = track.levels[Math.floor((above - track.y) / ROW)] || [];
    const time = from + (left - LEFT) / scale, near = 2 / scale;
    const i = first(list, (call) => begin[call], time + near) - 1;
    return i >= 0 && end[list[i]] >= time - near ? list[i] : -1;
  }
  function pair(list, name, value) {
    const part = list.appendChild(document.createElement("div"));
    part.appendChild(document.createElement("dt")).textContent = name;
    part.appendChild(document.createElement("dd")).textContent = value;
  }
  const NOTES = ["", "Its entry was not recorded.", "Its return was not recorded.",
    "It never returned."];
  function choose(call) {
    chosen = call;
    const panel = element("chosen");
    panel.hidden = call < 0;
    panel.replaceChildren();
    if (call >= 0) {
      panel.appendChild(document.createElement("b")).textContent = texts[columns.function[call]];
      panel.append(" " + NOTES[columns.seen[call]]);
      const list = panel.appendChild(document.createElement("dl"));
      const pairs = columns.arguments[call] || [];
      for (let i = 0; i < pairs.length; i += 2) pair(list, texts[pairs[i]], texts[pairs[i + 1]]);
      if (columns.result[call] >= 0) pair(list, "result", texts[columns.result[call]]);
      pair(list, "took", duration(columns.length[call]));
      pair(list, "itself", duration(own[call]));
      pair(list, "began at", duration(begin[call]));
      const [tid, name] = tasks[columns.task[call]];
      pair(list, "task", name + " (" + tid + ")");
      const cpus = [columns.entryCpu[call], columns.returnCpu[call]].filter((cpu) => cpu >= 0);
      pair(list, "CPU", Array.from(new Set(cpus)).join(" → "));
    }
    later();
  }
  let moving = null;
  canvas.addEventListener("pointerdown", (event) => {
    moving = { x: event.clientX, y: event.clientY, from, top: view.scrollTop, far: false };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("moving");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!moving) return;
    const dx = event.clientX - moving.x, dy = event.clientY - moving.y;
    moving.far = moving.far || Math.abs(dx) + Math.abs(dy) > 4;
    if (!moving.far) return;
    view.scrollTop = moving.top - dy;
    show(moving.from - dx / scale, visible);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (moving && !moving.far) choose(callAt(event));
    moving = null;
    canvas.classList.remove("moving");
  });
  canvas.addEventListener("pointercancel", () => { moving = null; });
  canvas.addEventListener("dblclick", (event) => {
    const call = callAt(event);
    if (call >= 0) show(begin[call] - columns.length[call] * 0.05, columns.length[call] * 1.1);
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const left = event.clientX - canvas.getBoundingClientRect().left - LEFT;
      zoom(Math.exp(event.deltaY * 0.003), from + Math.max(0, left) / scale);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      show(from + (event.deltaX || event.deltaY) / scale, visible);
    }
  }, { passive: false });
  const keys = {
    w: () => zoom(0.7, middle()), s: () => zoom(1 / 0.7, middle()),
    a: () => show(from - visible * 0.2, visible), d: () => show(from + visible * 0.2, visible),
    Escape: () => choose(-1),
  };
  view.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (action && !event.ctrlKey && !event.metaKey) { event.preventDefault(); action(); }
  });
  element("in").addEventListener("click", () => zoom(0.5, middle()));
  element("out").addEventListener("click", () => zoom(2, middle()));
  element("fit").addEventListener("click", () => show(0, whole));
  element("find").addEventListener("input", (event) => {
    sought = event.target.value.toLowerCase();
    const matching = rows.filter((one) => sought && one.name.toLowerCase().includes(sought));
    const calls = matching.reduce((sum, one) => sum + one.calls, 0);
    element("found").textContent = sought ? grouped(calls) + " calls" : "";
    later();
  });
  view.addEventListener("scroll", later);
  addEventListener("resize", later);
  const repaint = () => { colours(); later(); };
  root.addEventListener("theme", repaint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  colours();
  draw();
})();
