"use strict";
const { title, runs } = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const STATES = ["computing", "waiting", "communicating", "dropped", "absent"];
const MEANING = {
  computing: "computing", waiting: "waiting", communicating: "communicating",
  dropped: "dropped work (late, interrupted or lost)", absent: "absent",
};
// Okabe and Ito's colours, for workers; a run has its scheme's colour.
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#999933"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "circle"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}
// Black is drawn in the text colour, so that it is visible in dark mode.
const ink = (colour) => (colour === "#000000" ? "var(--ink)" : colour);
const number = (value, digits = 4) => (value == null ? "–" : String(Number(value.toPrecision(digits))));
const seconds = (value) => `${number(value, 5)} s`;
const section = (heading, ...children) => main.append(make("section", {}, make("h2", {}, heading), ...children));

/* The table of runs. */
function comparison() {
  const names = ["run", "scheme", "workers", "steps", "time", "stopped by", "loss", "accuracy", "idle", "updates", "lost samples", "MB moved"];
  const row = (run) => {
    const key = make("span", { class: "key", style: `background:${ink(run.colour)}` });
    const s = run.summary;
    const cells = s
      ? [run.scheme, s.workers, s.iterations, seconds(s.time), s.stopped_by, number(s.loss), number(s.accuracy),
        `${(100 * s.idle_share).toFixed(1)} %`, s.updates_committed, s.samples_lost, number(s.bytes / 1e6, 4)]
      : [run.scheme, run.workers.length, run.steps.length / 3, seconds(run.duration), "not finished", "–", "–", "–", "–", "–", "–"];
    const first = make("td", {}, key, run.name);
    return make("tr", {}, first, ...cells.map((cell) => make("td", {}, String(cell))));
  };
  const head = make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Summary of runs" },
    make("table", { id: "comparison" }, head, make("tbody", {}, ...runs.map(row))));
}

/* Curves. */
function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}
function chart(heading, curves) {
  curves = curves.filter((curve) => curve.points.length);
  const visible = new Set(curves);
  const readout = make("output", { class: "readout soft" });
  const svg = make("svg", { tabindex: "0", role: "img", "aria-label": `${heading}: ${curves.map((curve) => curve.name).join(", ")}. Arrow keys read values.` });
  let cursor = null, plot = null;
  function draw() {
    svg.replaceChildren();
    const width = svg.clientWidth || 600, height = svg.clientHeight || 260;
    const [left, right, top, bottom] = [52, 8, 8, 34];
    const points = [...visible].flatMap((curve) => curve.points);
    if (!points.length) return;
    const range = (index) => points.reduce(([low, high], point) => [Math.min(low, point[index]), Math.max(high, point[index])], [Infinity, -Infinity]);
    let [x0, x1] = range(0), [y0, y1] = range(1);
    x0 = Math.min(0, x0);
    if (x1 === x0) x1 = x0 + 1;
    const margin = (y1 - y0) * 0.05 || Math.abs(y1) * 0.1 || 1;
    y0 -= margin; y1 += margin;
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - right);
    const y = (value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - top - bottom);
    for (const at of ticks(y0, y1, 5)) {
      svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
        make("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, number(at)));
    }
    for (const at of ticks(x0, x1, Math.max(3, width / 110))) svg.append(make("text", { x: x(at), y: height - bottom + 16, "text-anchor": "middle" }, number(at)));
    svg.append(make("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "time (s)"));
    for (const curve of visible) {
      const path = curve.points.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      svg.append(make("path", { d: path, fill: "none", stroke: ink(curve.colour), "stroke-width": 1.8, "stroke-dasharray": curve.dash, "stroke-linejoin": "round" }));
      if (curve.points.length === 1) svg.append(make("circle", { cx: x(curve.points[0][0]), cy: y(curve.points[0][1]), r: 3, fill: ink(curve.colour) }));
    }
    plot = { x, x0, x1, left, right, width, line: make("line", { stroke: "var(--soft)", y1: top, y2: height - bottom, visibility: "hidden" }) };
    svg.append(plot.line);
    if (cursor != null) read(cursor);
  }
  function read(at) {
    if (!plot) return;
    cursor = Math.min(plot.x1, Math.max(plot.x0, at));
    for (const end of ["x1", "x2"]) plot.line.setAttribute(end, plot.x(cursor));
    plot.line.setAttribute("visibility", "visible");
    const nearest = (curve) => curve.points.reduce((best, point) => (Math.abs(point[0] - cursor) < Math.abs(best[0] - cursor) ? point : best));
    readout.textContent = `${seconds(cursor)}: ${[...visible].slice(0, 20).map((curve) => `${curve.name} ${number(nearest(curve)[1])}`).join(", ")}`;
  }
  svg.addEventListener("pointermove", (event) => {
    if (!plot) return;
    const at = (event.clientX - svg.getBoundingClientRect().left - plot.left) / (plot.width - plot.left - plot.right);
    read(plot.x0 + at * (plot.x1 - plot.x0));
  });
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
    if (!move || !plot) return;
    event.preventDefault();
    read((cursor ?? plot.x0) + move * (plot.x1 - plot.x0));
  });
  const keys = curves.length > 1 ? curves.map((curve) => {
    const button = make("button", { type: "button", "aria-pressed": "true" }, make("span", { class: "key", style: `background:${ink(curve.colour)}` }), curve.name);
    button.addEventListener("click", () => {
      if (!visible.delete(curve)) visible.add(curve);
      button.setAttribute("aria-pressed", String(visible.has(curve)));
      draw();
    });
    return button;
  }) : [];
  // Drawn at once, not only on the first resize event, so that printing or saving the page includes the curves.
  draw();
  new ResizeObserver(draw).observe(svg);
  return make("div", { class: "chart" }, make("h3", {}, heading), svg, make("div", { class: "keys" }, ...keys), readout);
}
// Runs of one scheme share a colour and differ by dashes.
const dash = (run) => DASHES[runs.slice(0, runs.indexOf(run)).filter((other) => other.colour === run.colour).length % DASHES.length];
const ofRuns = (pick) => runs.map((run) => ({ name: run.name, colour: run.colour, dash: dash(run), points: pick(run) || [] }));
function charts() {
  const drawn = [];
  const add = (heading, curves) => { if (curves.some((curve) => curve.points.length)) drawn.push(chart(heading, curves)); };
  add("training loss", ofRuns((run) => run.loss));
  add("held-out accuracy", ofRuns((run) => run.accuracy));
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort().reverse();
  for (const name of names) {
    const having = runs.filter((run) => run.settings[name]);
    if (having.every((run) => run.settings[name].length === 1)) {
      add(name, ofRuns((run) => run.settings[name]?.[0].points));
    } else {
      for (const run of having) {
        const curves = run.settings[name].map((curve, index) => ({ ...curve, colour: PALETTE[index % 8], dash: DASHES[Math.floor(index / 8) % 4] }));
        add(runs.length > 1 ? `${name}, ${run.name}` : name, curves);
      }
    }
  }
  return make("div", { class: "charts" }, ...drawn);
}

/* The timeline of a run. */
function timeline(run) {
  const GUTTER = 76, ROW = 18, AXIS = 22;
  // The first row is the model with its steps; the others are the workers.
  const rows = run.workers.map((flat) => {
    const segments = [];
    for (let at = 0, index = 0; index < flat.length; index += 3) {
      segments.push({ from: at * run.tick, to: (at += flat[index]) * run.tick, state: STATES[flat[index + 1]], reason: run.reasons[flat[index + 2]] });
    }
    return segments;
  });
  const steps = [];
  for (let at = 0, index = 0; index < run.steps.length; index += 3) {
    at += run.steps[index];
    steps.push({ at: at * run.tick, updates: run.steps[index + 1], reason: run.reasons[run.steps[index + 2]] });
  }
  let [from, to] = [0, run.duration || 1], cursor = { row: 0, at: null };
  const height = (rows.length + 1) * ROW + AXIS;
  const canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": `Timeline of ${run.name}. Arrow keys move the cursor, plus and minus zoom, Home shows all.` });
  canvas.style.height = `${height}px`;
  const readout = make("output", { class: "readout soft" }, "Point at a segment, or use the arrow keys, to read its activity and reason.");
  const after = (list, key, value) => {
    let [low, high] = [0, list.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle][key] > value) high = middle; else low = middle + 1;
    }
    return low;
  };
  function draw() {
    const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    const x = (at) => GUTTER + ((at - from) / (to - from)) * (width - GUTTER);
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = colour("soft");
    pen.fillText("model", 0, ROW / 2);
    rows.forEach((_, row) => pen.fillText(`worker ${row}`, 0, (row + 1.5) * ROW));
    rows.forEach((segments, row) => {
      for (let index = after(segments, "to", from); index < segments.length && segments[index].from < to; index++) {
        const { from: begin, to: end, state } = segments[index];
        const left = Math.max(GUTTER, x(begin));
        pen.fillStyle = colour(state);
        pen.fillRect(left, (row + 1) * ROW + 2, Math.max(0.5, x(Math.min(end, to)) - left), ROW - 4);
      }
    });
    pen.fillStyle = colour("ink");
    const most = Math.max(1, rows.length);
    for (let index = after(steps, "at", from); index < steps.length && steps[index].at <= to; index++) {
      const tall = Math.max(3, (ROW - 3) * Math.min(1, steps[index].updates / most));
      pen.fillRect(x(steps[index].at) - 0.5, ROW - tall, 1, tall);
    }
    pen.fillStyle = colour("soft");
    pen.textAlign = "center";
    for (const at of ticks(from, to, Math.max(2, width / 120))) {
      pen.fillText(number(at, 6), x(at), height - AXIS / 2);
      pen.fillRect(x(at), 0, 0.3, height - AXIS);
    }
    if (cursor.at != null) {
      pen.strokeStyle = colour("focus");
      pen.lineWidth = 2;
      pen.strokeRect(GUTTER, cursor.row * ROW + 1, width - GUTTER - 1, ROW - 2);
      pen.fillStyle = colour("focus");
      pen.fillRect(x(cursor.at) - 1, 0, 2, height - AXIS);
    }
  }
  function moveCursor(row, at) {
    cursor = { row: Math.min(rows.length, Math.max(0, row)), at: Math.min(to, Math.max(from, at)) };
    if (cursor.row === 0) {
      const index = after(steps, "at", cursor.at), nearest = [steps[index - 1], steps[index]].filter(Boolean)
        .sort((a, b) => Math.abs(a.at - cursor.at) - Math.abs(b.at - cursor.at))[0];
      readout.textContent = nearest ? `model, ${seconds(nearest.at)}: a step of ${nearest.updates} updates. Reason: ${nearest.reason}` : "model: no step yet";
    } else {
      const found = rows[cursor.row - 1].find((segment) => segment.to > cursor.at && segment.from <= cursor.at);
      const text = found ? `${MEANING[found.state]}, ${seconds(found.from)} to ${seconds(found.to)} (${seconds(found.to - found.from)})${found.reason ? `. Reason: ${found.reason}` : ""}` : "not joined yet";
      readout.textContent = `worker ${cursor.row - 1}: ${text}`;
    }
    draw();
  }
  function view(begin, length) {
    length = Math.min(run.duration || 1, Math.max(length, (run.duration || 1) / 1e5));
    from = Math.max(0, Math.min(begin, (run.duration || 1) - length));
    to = from + length;
    draw();
  }
  const zoom = (factor, around = cursor.at ?? (from + to) / 2) => view(around - (around - from) * factor, (to - from) * factor);
  // Moves the cursor to the next segment or step in its row.
  function moveToNext(direction) {
    const edges = cursor.row === 0 ? steps.map((step) => step.at) : rows[cursor.row - 1].map((segment) => (segment.from + segment.to) / 2);
    const at = cursor.at ?? from, list = direction > 0 ? edges.find((edge) => edge > at + run.tick) : edges.findLast((edge) => edge < at - run.tick);
    if (list == null) return;
    if (list < from || list > to) view(list - (to - from) / 2, to - from);
    moveCursor(cursor.row, list);
  }
  const actions = {
    ArrowLeft: () => moveToNext(-1), ArrowRight: () => moveToNext(1),
    ArrowUp: () => moveCursor(cursor.row - 1, cursor.at ?? from), ArrowDown: () => moveCursor(cursor.row + 1, cursor.at ?? from),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), Home: () => view(0, run.duration),
    PageUp: () => view(from - (to - from), to - from), PageDown: () => view(to, to - from),
  };
  canvas.addEventListener("keydown", (event) => {
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
  });
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor((event.clientY - box.top) / ROW), from + ((event.clientX - box.left - GUTTER) / (box.width - GUTTER)) * (to - from)];
  };
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from }; moveCursor(...place(event)); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && event.buttons) view(drag.from - ((event.clientX - drag.x) / (canvas.clientWidth - GUTTER)) * (to - from), to - from);
    else moveCursor(...place(event));
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event)[1]);
  }, { passive: false });
  new ResizeObserver(draw).observe(canvas);
  document.addEventListener("themechange", draw);
  const button = (text, label, action) => make("button", { type: "button", "aria-label": label, onclick: action }, text);
  const keys = STATES.map((state) => make("span", {}, make("span", { class: "key", style: `background:var(--${state})` }), MEANING[state]));
  const note = run.thinned ? [make("p", { class: "soft" }, "The run has more segments than the page can show: short ones are merged into the longest near them.")] : [];
  return make("div", { class: "timeline" },
    make("div", { class: "keys" }, button("−", "Show more time", () => zoom(2)), button("+", "Show less time", () => zoom(0.5)),
      button("◀", "Earlier", () => view(from - (to - from) / 2, to - from)), button("▶", "Later", () => view(from + (to - from) / 2, to - from)),
      button("All", "Show all", () => view(0, run.duration)), ...keys),
    canvas, readout, ...note);
}
// A timeline is drawn when its section is first opened.
function timelines() {
  return runs.map((run, index) => {
    const details = make("details", {}, make("summary", {}, runs.length > 1 ? run.name : `${run.scheme}, ${run.workers.length} workers`));
    const open = () => { if (details.open && !details.querySelector(".timeline")) details.append(timeline(run)); };
    details.addEventListener("toggle", open);
    if (index === 0) { details.open = true; open(); }
    return details;
  });
}

document.title = `${title} · Paceline`;
document.getElementById("title").textContent = title;
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.dispatchEvent(new Event("themechange"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
section("Summary", comparison());
section("Timelines", ...timelines());
section("Curves", charts());
section("Configuration", ...runs.map((run) => make("details", {}, make("summary", {}, run.name), make("pre", {}, run.configuration))));
