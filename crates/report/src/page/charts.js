/* Curves: smoothed, with the measured ones behind, and their names beside them. */

// The mean of neighbours: the window is a share of the curve, so that noise goes and the course stays.
function smoothed(points) {
  const half = Math.floor(points.length / 40);
  if (half < 1) return points;
  const sums = [0];
  points.forEach(([, value]) => sums.push(sums[sums.length - 1] + value));
  return points.map(([at], index) => {
    const reach = Math.min(half, index, points.length - 1 - index), [low, high] = [index - reach, index + reach + 1];
    return [at, (sums[high] - sums[low]) / (high - low)];
  });
}

class Chart {
  // `curves` gives { name, colour, points, band?, strong?, raw? }; a band is [time, low, high] for each point.
  constructor(heading, curves, { unit = "", axis = null, smooth = false } = {}) {
    Object.assign(this, { heading, curves, unit, axis, smooth, cursor: null });
    this.readout = make("output", { class: "readout soft" });
    this.svg = make("svg", { tabindex: "0", role: "img" });
    this.names = make("div", { class: "keys" });
    this.element = make("div", { class: "chart" }, make("h3", {}, heading), this.svg, this.names, this.readout);
    this.listen();
    document.addEventListener("themechange", () => this.draw());
    onResize(this.svg, () => this.draw());
    // Drawn at once, so that printing or saving the page includes it.
    this.draw();
  }

  draw() {
    const { svg } = this, shown = this.curves().filter((curve) => curve.points.length);
    svg.setAttribute("aria-label", `${this.heading}: ${shown.map((curve) => `${curve.name} ${number(curve.points[curve.points.length - 1][1])}`).join(", ")}. Arrow keys read values.`);
    if (!shown.length) return svg.replaceChildren();
    const width = svg.clientWidth || 560, room = 16 + 7.4 * Math.max(...shown.map((curve) => curve.name.length));
    // Names stand beside the ends of the curves, or below the chart where there is no room.
    const named = shown.length > 1, beside = named && room <= width * 0.4;
    this.names.replaceChildren(...(named && !beside ? shown.map((curve) => key(ink(curve.colour), curve.name)) : []));
    const [left, right, top, bottom] = [48, beside ? room : 12, 10, 28];
    svg.style.height = beside && shown.length > 13 ? `${14 * shown.length + top + bottom}px` : "";
    const height = svg.clientHeight || 230;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const values = shown.flatMap((curve) => curve.points.map((point) => point[1])).sort((a, b) => a - b);
    // A few wild values must not flatten the rest.
    let [low, high] = [values[0], values[values.length - 1 - Math.floor(values.length * (this.smooth && shown.length > 1 ? 0.04 : 0))]];
    const [x0, x1] = [0, Math.max(...shown.map((curve) => curve.points[curve.points.length - 1][0]), 1e-9)];
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    low = low >= 0 && low < margin ? 0 : low - margin;
    high += margin;
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - right);
    const y = (value) => Math.max(top - 4, Math.min(height - bottom + 4, height - bottom - ((value - low) / (high - low)) * (height - top - bottom)));
    const path = (points) => points.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const nodes = [];
    for (const at of ticks(low, high, 4)) {
      nodes.push(make("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }), make("text", { x: left - 7, y: y(at) + 4, "text-anchor": "end" }, number(at)));
    }
    for (const at of ticks(x0, x1, Math.max(2, (width - left - right) / 100))) nodes.push(make("text", { x: x(at), y: height - bottom + 18, "text-anchor": "middle" }, `${number(at)} s`));
    const labels = [];
    for (const curve of shown) {
      const colour = ink(curve.colour), line = this.smooth ? smoothed(curve.points) : curve.points;
      const stroke = { fill: "none", stroke: colour, "stroke-linejoin": "round" };
      if (curve.band && curve.strong !== false) {
        const edge = [...curve.band.map(([at, , up]) => [at, up]), ...curve.band.map(([at, down]) => [at, down]).reverse()];
        nodes.push(make("path", { d: `${path(edge)}Z`, fill: colour, "fill-opacity": 0.16, stroke: "none" }));
      } else if (!curve.band && this.smooth && shown.length < 4) nodes.push(make("path", { ...stroke, d: path(curve.points), "stroke-width": 1, "stroke-opacity": 0.35 }));
      const weight = { "stroke-width": curve.strong === false ? 1.3 : 2.2, "stroke-opacity": curve.strong === false ? 0.75 : 1 };
      nodes.push(make("path", { ...stroke, ...weight, d: path(line) }));
      const [at, value] = line[line.length - 1];
      nodes.push(make("circle", { cx: x(at), cy: y(value), r: 3, fill: colour }));
      labels.push({ y: y(value), name: curve.name, colour, strong: curve.strong !== false });
    }
    if (beside) nodes.push(...this.labels(labels, width - right + 8, top, height - bottom));
    this.plot = { x, x0, x1, left, right, width, shown, line: make("line", { stroke: "var(--soft)", y1: top, y2: height - bottom, visibility: "hidden" }) };
    nodes.push(this.plot.line);
    svg.replaceChildren(...nodes);
    if (this.cursor != null) this.read(this.cursor);
  }

  // The names of the curves beside their ends, moved apart where they would overlap.
  labels(labels, x, top, bottom) {
    const gap = Math.min(14, (bottom - top) / labels.length);
    labels.sort((a, b) => a.y - b.y);
    let last = top - gap;
    for (const label of labels) last = label.at = Math.max(label.y, last + gap);
    let next = bottom + gap;
    for (const label of [...labels].reverse()) next = label.at = Math.min(label.at, next - gap);
    return labels.map(({ at, name, colour, strong }) => make("text", { class: "label", x, y: at + 4, style: `fill:${colour === "var(--ink)" ? colour : `color-mix(in srgb, ${colour}, var(--ink) 45%)`}`, "font-weight": strong ? 600 : 400 }, name));
  }

  read(at) {
    const { plot } = this;
    if (!plot) return;
    this.cursor = Math.min(plot.x1, Math.max(plot.x0, at));
    for (const end of ["x1", "x2"]) plot.line.setAttribute(end, plot.x(this.cursor));
    plot.line.setAttribute("visibility", "visible");
    const nearest = (curve) => curve.points[Math.min(curve.points.length - 1, after(curve.points, 0, this.cursor))];
    setText(this.readout, `${number(this.cursor, 5)} s: ${plot.shown.slice(0, 20).map((curve) => `${curve.name} ${number(nearest(curve)[1])}`).join(", ")}`);
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => {
      const { plot } = this;
      if (!plot) return;
      const share = (event.clientX - this.svg.getBoundingClientRect().left - plot.left) / (plot.width - plot.left - plot.right);
      this.read(plot.x0 + share * (plot.x1 - plot.x0));
    });
    this.svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
      if (!move || !this.plot) return;
      event.preventDefault();
      this.read((this.cursor ?? this.plot.x0) + move * (this.plot.x1 - this.plot.x0));
    });
  }
}

/* The curves of one run. */
const RUN_CHARTS = ["training loss", "held-out accuracy", "updates per step (k)", "batch size (samples)", "local iterations per round", "barriers: planned wait (s)"];
const SMOOTHED = { "training loss": true, "updates per step (k)": true, "batch size (samples)": true };

function runCurves(view, heading) {
  const curves = view().curve(heading);
  return curves.map((curve, index) => ({ name: curve.name || heading, colour: curves.length === 1 ? "var(--focus)" : PALETTE[index % PALETTE.length], points: curve.points, strong: curves.length < 9 }));
}

// The value of a curve at a time, between its points.
function valueAt(points, at) {
  const index = after(points, 0, at);
  if (index === 0 || index === points.length) return index ? points[index - 1][1] : points[0][1];
  const [[t0, v0], [t1, v1]] = [points[index - 1], points[index]];
  return v0 + ((at - t0) / (t1 - t0 || 1)) * (v1 - v0);
}

// One curve for a contestant: the mean of its seeds as far as all of them go, with the lowest and highest as a band.
function contestantCurve({ name, colour, views, accuracy }, heading, strong) {
  const own = views.map((view) => view.curve(heading)[0]?.points ?? []);
  // The accuracy is known of all seeds, the rest only of the runs on this page.
  const all = (heading === "held-out accuracy" && accuracy.length > own.length ? accuracy : own).filter((points) => points.length);
  const curve = { name, colour, strong, points: all[0] ?? [] };
  if (all.length < 2) return curve;
  const end = Math.min(...all.map((points) => points[points.length - 1][0]));
  const lines = all.map(smoothed), times = lines[0].map(([at]) => at).filter((at) => at <= end);
  const values = times.map((at) => lines.map((points) => valueAt(points, at)));
  curve.points = times.map((at, index) => [at, values[index].reduce((sum, value) => sum + value, 0) / all.length]);
  curve.band = times.map((at, index) => [at, Math.min(...values[index]), Math.max(...values[index])]);
  return curve;
}
