/* The timeline of a run: a row for the model with its steps, and rows of workers.
 *
 * Every column of pixels shows what share of its time a worker spent on each activity. Close by, that is one activity; from
 * afar, a mixture. So nothing disappears, however long the run is. Rows are drawn in slices of a few milliseconds. */

const AXIS = 24, SLICE = 8;
// The height of the model's row, of a worker's, and of a named worker's among many; and of letters, in pixels.
const FULL = { top: 26, row: 22, among: 18, letters: 12 }, COMPACT = { top: 18, row: 14, among: 14, letters: 11 };
// Up to this many workers have a row with a name each; of more, a few do, and the others share DENSE pixels.
const MAX_NAMED = 24, FEW_NAMED = 8, DENSE = 360;

const HOW_TO_READ = "Point at a worker’s time, or use the arrow keys, to read what it did and why.";

// A time axis that several timelines may share: what is seen of it.
class TimeAxis {
  constructor(end) {
    this.listeners = [];
    this.end = end;
    this.follow = true;
    this.length = null; // Of what is seen, if it moves along with the end; null for all.
    this.show(0, end);
  }

  extend(end) {
    this.end = Math.max(end, 1e-9);
    if (!this.follow) return;
    this.from = this.length ? Math.max(0, this.end - this.length) : 0;
    this.to = this.end;
  }

  show(from, to) {
    const all = this.end || 1, length = Math.min(all, Math.max(to - from, all / 1e5));
    this.from = Math.max(0, Math.min(from, all - length));
    this.to = this.from + length;
    this.listeners.forEach((listener) => listener());
  }

  move(from, to) {
    this.follow = false;
    this.show(from, to);
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.move(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  // Shows the last seconds of a run that goes on, or everything.
  last(length) {
    this.follow = true;
    this.length = length;
    this.extend(this.end);
    this.listeners.forEach((listener) => listener());
  }
}

// The rows of a timeline: which workers they are of, and where.
function timelineRows(view, named, size) {
  const ranks = view.workers.map((_, rank) => rank);
  const row = (y, height) => (rank) => ({ ranks: [rank], y: y(), height, named: true });
  let y = size.top;
  const next = (height) => () => { const at = y; y += height; return at; };
  if (ranks.length <= named) return { rows: ranks.map(row(next(size.row), size.row)), height: y };
  const costly = [...ranks].sort((a, b) => view.workers[b].waitedFor - view.workers[a].waitedFor || a - b).slice(0, FEW_NAMED);
  const rows = costly.map(row(next(size.among), size.among));
  const others = ranks.filter((rank) => !costly.includes(rank));
  y += 8;
  // Whole pixels: of very many workers, a row shows several.
  const perRow = Math.ceil(others.length / DENSE), height = Math.max(1, Math.floor(DENSE / Math.ceil(others.length / perRow)));
  for (let index = 0; index < others.length; index += perRow) rows.push({ ranks: others.slice(index, index + perRow), y: next(height)(), height, named: false });
  return { rows, height: y };
}

class Timeline {
  constructor(view, axis, { named = MAX_NAMED, compact = false } = {}) {
    Object.assign(this, { view, axis, named, compact, size: compact ? COMPACT : FULL, cursor: { row: 0, at: null } });
    const label = `Timeline of ${view.name}: what every worker did. Arrow keys move between intervals and workers, plus and minus zoom, Home shows all.`;
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": label });
    this.readout = make("output", { class: "readout soft" });
    this.element = make("div", { class: "timeline" }, this.canvas, this.readout);
    this.listen();
    axis.listeners.push(() => this.draw());
    document.addEventListener("themechange", () => this.draw());
    onResize(this.canvas, () => this.draw());
    if (!compact) this.say(HOW_TO_READ);
  }

  say(text) {
    setText(this.readout, text);
  }

  // Draws all of it: the frame now, the rows in slices.
  draw() {
    const { canvas, view, axis } = this, width = canvas.clientWidth;
    if (!width) return;
    const scale = Math.min(2, window.devicePixelRatio || 1);
    const { rows, height } = timelineRows(view, this.named, this.size);
    this.rows = rows;
    this.gutter = width < 520 ? 58 : 84;
    this.margin = width < 760 || this.compact ? 8 : 190;
    const full = height + AXIS;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(full * scale)) {
      canvas.style.height = `${full}px`;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(full * scale);
    }
    this.plotWidth = width - this.gutter - this.margin;
    this.colours = STATES.map((state) => rgb(css(state)));
    this.paper = rgb(css("paper"));
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const ready = this.buffer?.width === canvas.width && this.buffer?.height === canvas.height;
    if (!ready) this.buffer = new OffscreenCanvas(canvas.width, canvas.height);
    const work = { scale, index: 0, pen: this.buffer.getContext("2d"), from: axis.from, to: axis.to };
    this.work = work;
    const slice = () => {
      if (this.work !== work) return;
      const begun = performance.now();
      while (work.index < rows.length && performance.now() - begun < SLICE) this.drawRow(rows[work.index++], work);
      if (work.index < rows.length) requestAnimationFrame(slice);
      else this.show(pen, width, height, work);
    };
    slice();
  }

  // What share of each column the workers of a row spent on each activity.
  columns(row, { from, to }, count) {
    const sums = new Float32Array(count * STATES.length), scale = count / (to - from);
    const add = (begin, end, state, weight = 1) => {
      const [a, b] = [Math.max(0, (begin - from) * scale), Math.min(count, (end - from) * scale)];
      for (let column = Math.floor(a); column < b; column++) {
        sums[column * STATES.length + state] += weight * (Math.min(b, column + 1) - Math.max(a, column));
      }
    };
    for (const rank of row.ranks) {
      const list = this.view.segments[rank]?.list ?? [], worker = this.view.workers[rank];
      const [begin, end] = list.length ? [list[0].from, list[list.length - 1].to] : [Infinity, Infinity];
      for (let index = after(list, "to", from); index < list.length && list[index].from < to; index++) add(list[index].from, list[index].to, list[index].state);
      // Where there are no segments, the shares say it.
      const text = this.view.shares[rank] ?? "", width = this.view.shareWidth;
      for (let index = Math.max(0, Math.floor(from / width)); index * width < to && 5 * index < text.length; index++) {
        const parts = [[index * width, Math.min((index + 1) * width, begin)], [Math.max(index * width, end), (index + 1) * width]];
        for (const [left, right] of parts) {
          if (!(right > left)) continue;
          for (let state = 0; state < STATES.length; state++) {
            const share = DIGIT[text.charCodeAt(5 * index + state)] / 63;
            if (share) add(left, right, state, share);
          }
        }
      }
      // What the worker does now has no end yet.
      if (worker && !this.view.ended) add(worker.since, this.view.time, worker.state);
    }
    return sums;
  }

  drawRow(row, work) {
    const { scale, pen } = work, states = STATES.length;
    // Thin rows have coarse columns: nobody sees more.
    const step = row.height < 4 ? 2 : 1;
    const width = Math.max(1, Math.round(this.plotWidth * scale)), columns = Math.ceil(width / step);
    const sums = this.columns(row, work, columns), gap = row.height > 8 ? Math.round(2 * scale) : row.height > 3 ? 1 : 0;
    const height = Math.max(1, Math.round(row.height * scale) - gap);
    const image = pen.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    for (let column = 0; column < columns; column++) {
      let total = 0;
      for (let state = 0; state < states; state++) total += sums[column * states + state];
      if (total <= 0.01) continue;
      // More than the whole time is a matter of rounding; less is time that is not known.
      const whole = Math.max(total, row.ranks.length);
      for (let x = column * step; x < Math.min(width, (column + 1) * step); x++) {
        if (row.height < 4) {
          const colour = mixed(sums.subarray(column * states, (column + 1) * states), this.colours, this.paper, whole);
          for (let y = 0; y < height; y++) pixels[y * width + x] = colour;
        } else {
          // Computing at the bottom, what is lost above it.
          let y = height, sum = 0;
          for (let state = 0; state < states; state++) {
            sum += sums[column * states + state];
            const top = Math.round(height * (1 - sum / whole));
            while (y > top) pixels[--y * width + x] = this.colours[state];
          }
        }
      }
    }
    pen.putImageData(image, Math.round(this.gutter * scale), Math.round(row.y * scale));
  }

  // Copies the rows, and adds names, steps, axis and cursor.
  show(pen, width, height, { scale, from, to }) {
    const { view, gutter, rows, plotWidth } = this, { top, letters } = this.size, right = gutter + plotWidth;
    const x = (at) => gutter + ((at - from) / (to - from)) * plotWidth;
    pen.clearRect(0, 0, width, height + AXIS);
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.drawImage(this.buffer, 0, 0);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    const text = (words, at, y, colour, bold) => {
      pen.font = `${bold ? "600 " : ""}${letters}px system-ui, sans-serif`;
      pen.fillStyle = colour;
      pen.fillText(words, at, y);
    };
    const [soft, strong, alarm] = [css("soft"), css("ink"), css("alarm")];
    const short = gutter < 70, dense = rows.filter((row) => !row.named);
    text("model", 0, top / 2 - 1, soft);
    for (const row of rows.filter((row) => row.named)) {
      const [rank] = row.ranks, worker = view.workers[rank], straggles = view.isStraggler(rank), middle = row.y + row.height / 2 - 1;
      text(short ? `w ${rank}` : `worker ${rank}`, 0, middle, straggles ? alarm : soft, straggles);
      if (this.margin > 100 && worker.waitedFor > 0 && straggles) text(`others waited ${duration(worker.waitedFor)}`, right + 8, middle, alarm, true);
    }
    if (dense.length) {
      const [first] = dense, last = dense[dense.length - 1], count = dense.reduce((sum, row) => sum + row.ranks.length, 0);
      text(short ? `+ ${count}` : `${count} more,`, 0, first.y + 8, soft);
      if (!short && last.y - first.y > 24) text("by rank", 0, first.y + 24, soft);
    }
    pen.fillStyle = strong;
    const most = Math.max(1, view.expected, view.present), bars = new Map();
    for (let index = after(view.steps.list, "at", from); index < view.steps.list.length && view.steps.list[index].at <= to; index++) {
      const { at, updates } = view.steps.list[index], column = Math.round(x(at) * scale);
      bars.set(column, Math.max(updates, bars.get(column) ?? 0));
    }
    pen.globalAlpha = bars.size > plotWidth / 3 ? 0.45 : 0.9;
    for (const [column, updates] of bars) {
      const tall = Math.max(3, (top - 8) * Math.min(1, updates / most));
      pen.fillRect(column / scale - 0.5, top - 4 - tall, 1, tall);
    }
    pen.globalAlpha = 1;
    pen.textAlign = "center";
    for (const at of ticks(from, to, Math.max(2, plotWidth / 110))) {
      if (x(at) > right - 14) continue;
      text(`${number(at, 6)} s`, Math.max(x(at), gutter + 10), height + AXIS / 2 + 2, soft);
      pen.globalAlpha = 0.25;
      pen.fillRect(x(at), top - 4, 1, height - top + 8);
      pen.globalAlpha = 1;
    }
    if (this.cursor.at != null) {
      const row = rows[this.cursor.row - 1];
      pen.strokeStyle = pen.fillStyle = css("focus");
      pen.lineWidth = 2;
      if (row) pen.strokeRect(gutter, row.y - 1, plotWidth, row.height); else pen.strokeRect(gutter, 1, plotWidth, top - 4);
      pen.fillRect(x(this.cursor.at) - 1, 0, 2, height);
    }
  }

  // Reads what is at a place.
  moveCursor(row, at) {
    const { view, axis } = this;
    row = Math.min(this.rows.length, Math.max(0, row));
    this.cursor = { row, at: Math.min(axis.to, Math.max(axis.from, at)) };
    at = this.cursor.at;
    if (row === 0) {
      const steps = view.steps.list, index = after(steps, "at", at);
      const [nearest] = [steps[index - 1], steps[index]].filter(Boolean).sort((a, b) => Math.abs(a.at - at) - Math.abs(b.at - at));
      this.say(nearest ? `model, ${number(nearest.at, 6)} s: a step of ${counted(nearest.updates, "update")}. Reason: ${nearest.reason || "not kept"}` : "model: no step here");
    } else {
      const { ranks } = this.rows[row - 1];
      this.say(ranks.length === 1 ? this.segmentText(ranks[0], at) : `workers ${ranks[0]} to ${ranks[ranks.length - 1]}, ${number(at, 6)} s: ${this.shareText(row, at)}`);
    }
    this.draw();
  }

  segmentText(rank, at) {
    const list = this.view.segments[rank]?.list ?? [], found = list[after(list, "to", at)], worker = this.view.workers[rank];
    if (found && found.from <= at) {
      const reason = found.reason ? `. Reason: ${found.reason}` : "";
      return `worker ${rank}: ${MEANING[STATES[found.state]]}, ${number(found.from, 6)} s to ${number(found.to, 6)} s (${number(found.to - found.from, 4)} s)${reason}`;
    }
    if (worker && at >= worker.since && !this.view.ended) return `worker ${rank}: ${STATES[worker.state]} since ${number(worker.since, 6)} s${worker.reason ? `. Reason: ${worker.reason}` : ""}`;
    return `worker ${rank}, about ${number(at, 5)} s: ${this.shareText(this.rows.findIndex((row) => row.ranks[0] === rank) + 1, at)}`;
  }

  shareText(row, at) {
    const width = this.view.shareWidth, from = Math.floor(at / width) * width;
    const sums = this.columns(this.rows[row - 1], { from, to: from + width }, 1);
    const total = sums.reduce((sum, value) => sum + value, 0);
    const parts = STATES.map((state, index) => [state, sums[index] / total]).filter(([, share]) => share >= 0.005);
    return total > 0 ? parts.map(([state, share]) => `${state} ${percent(share)}`).join(", ") : "nothing is known";
  }

  // Moves the cursor to the next segment or step in its row.
  moveToNext(direction) {
    const { row } = this.cursor, at = this.cursor.at ?? this.axis.from, { from, to } = this.axis;
    const list = row === 0 ? this.view.steps.list.map((step) => step.at)
      : (this.view.segments[this.rows[row - 1].ranks[0]]?.list ?? []).map((segment) => (segment.from + segment.to) / 2);
    const little = (to - from) * 1e-6;
    const next = (direction > 0 ? list.find((place) => place > at + little) : list.findLast((place) => place < at - little)) ?? at + direction * (to - from) / 50;
    if (next < from || next > to) this.axis.move(next - (to - from) / 2, next + (to - from) / 2);
    this.moveCursor(row, next);
  }

  listen() {
    const { canvas, axis } = this;
    const width = () => axis.to - axis.from, at = () => this.cursor.at ?? axis.from;
    const actions = {
      ArrowLeft: () => this.moveToNext(-1), ArrowRight: () => this.moveToNext(1),
      ArrowUp: () => this.moveCursor(this.cursor.row - 1, at()), ArrowDown: () => this.moveCursor(this.cursor.row + 1, at()),
      "+": () => axis.zoom(0.5, at()), "=": () => axis.zoom(0.5, at()), "-": () => axis.zoom(2, at()), Home: () => axis.last(null),
      PageUp: () => axis.move(axis.from - width(), axis.to - width()), PageDown: () => axis.move(axis.from + width(), axis.to + width()),
    };
    canvas.addEventListener("keydown", (event) => {
      const action = actions[event.key];
      if (!action || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      action();
    });
    const place = (event) => {
      const box = canvas.getBoundingClientRect(), y = event.clientY - box.top;
      const row = this.rows.findIndex((row) => y >= row.y && y < row.y + row.height) + 1;
      return [row, axis.from + ((event.clientX - box.left - this.gutter) / this.plotWidth) * width()];
    };
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from: axis.from }; this.moveCursor(...place(event)); });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.rows) return;
      if (drag && event.buttons) {
        const from = drag.from - ((event.clientX - drag.x) / this.plotWidth) * width();
        if (Math.abs(event.clientX - drag.x) > 3) axis.move(from, from + width());
      } else this.moveCursor(...place(event));
    });
    canvas.addEventListener("pointerup", () => { drag = null; });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      axis.zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event)[1]);
    }, { passive: false });
  }
}

// A colour such as #0072b2 as a pixel.
function rgb(colour) {
  const value = parseInt(colour.slice(1), 16);
  return (255 << 24 | (value & 255) << 16 | (value >> 8 & 255) << 8 | value >> 16) >>> 0;
}

// The mean of colours with weights; what is missing to the whole is paper.
function mixed(weights, colours, paper, whole) {
  let rest = whole, [red, green, blue] = [0, 0, 0];
  const add = (colour, weight) => {
    red += weight * (colour & 255);
    green += weight * (colour >> 8 & 255);
    blue += weight * (colour >> 16 & 255);
  };
  weights.forEach((weight, state) => { if (weight) { add(colours[state], weight); rest -= weight; } });
  if (rest > 0) add(paper, rest);
  return (255 << 24 | blue / whole << 16 | green / whole << 8 | red / whole) >>> 0;
}

// The buttons of a time axis, and what the colours mean.
function timelineControls(axis, live) {
  const width = () => axis.to - axis.from;
  const choices = live ? [button("Last minute", "Follow the last minute", () => axis.last(60)), button("Last 10 minutes", "Follow the last ten minutes", () => axis.last(600))] : [];
  return make("div", { class: "keys controls" },
    ...choices, button("All", "Show all", () => axis.last(null)),
    button("−", "Show more time", () => axis.zoom(2)), button("+", "Show less time", () => axis.zoom(0.5)),
    button("◀", "Earlier", () => axis.move(axis.from - width() / 2, axis.to - width() / 2)), button("▶", "Later", () => axis.move(axis.from + width() / 2, axis.to + width() / 2)));
}
const timelineKeys = () => make("div", { class: "keys legend" }, ...STATES.map((state) => key(`var(--${state})`, MEANING[state])));
