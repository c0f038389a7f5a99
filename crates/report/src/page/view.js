/* What is seen of a run: all of it from the page, or from the server, which then sends what changes. */

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const DIGIT = new Uint8Array(128);
[...DIGITS].forEach((digit, value) => { DIGIT[digit.charCodeAt(0)] = value; });

class RunView {
  constructor(run) {
    Object.assign(this, { name: run.name, virtualTime: run.virtual_time, colour: run.colour, batch: run.batch, expected: run.expected });
    Object.assign(this, { configuration: run.configuration, summary: run.summary });
    this.segments = []; // Of each worker: { first, list }.
    this.steps = { first: 0, list: [] };
    this.notices = { first: 0, list: [] };
    this.shares = []; // Of each worker: a text with five digits for each interval.
    this.workers = [];
    this.curves = new Map();
    this.apply(run.view);
  }

  // Takes in all of the run, or what changed of it.
  apply(view) {
    for (const key of ["scheme", "time", "story", "ended", "headline", "iterations", "present", "samples", "loss", "accuracy", "decisions"]) this[key] = view[key];
    const reason = (index) => view.reasons[index] ?? "";
    for (const [worker, { first, from, items }] of view.segments) {
      const list = [];
      for (let at = items[0], index = 1; index < items.length; index += 3) {
        list.push({ from: at * view.tick, to: (at += items[index]) * view.tick, state: items[index + 1], reason: reason(items[index + 2]) });
      }
      this.segments[worker] = spliced(this.segments[worker], first, from, list);
    }
    const steps = [];
    for (let at = 0, index = 0; index < view.steps.items.length; index += 3) {
      at += view.steps.items[index];
      steps.push({ at: at * view.tick, updates: view.steps.items[index + 1], reason: reason(view.steps.items[index + 2]) });
    }
    this.steps = spliced(this.steps, view.steps.first, view.steps.from, steps);
    this.notices = spliced(this.notices, view.notices.first, view.notices.from, view.notices.items);
    this.shareWidth = view.shares.width;
    view.shares.workers.forEach((text, worker) => { this.shares[worker] = (this.shares[worker] ?? "").slice(0, 5 * view.shares.from) + text; });
    for (const [rank, [state, since, why], [batch, joined], [used, lost, pending], [speed, slowness], [computing, waiting, waitedFor], [reported, late]] of view.workers) {
      this.workers[rank] = { rank, state, since, reason: reason(why), batch, joined, used, lost, pending, speed, slowness, computing, waiting, waitedFor, reported, late };
    }
    for (const { chart, name, from, points } of view.curves) {
      const key = `${chart}\n${name}`, curve = this.curves.get(key) ?? { chart, name, points: [] };
      curve.points = curve.points.slice(0, from).concat(points);
      this.curves.set(key, curve);
    }
  }

  curve(chart) {
    return [...this.curves.values()].filter((curve) => curve.chart === chart);
  }

  isStraggler(rank) {
    return this.headline.stragglers.includes(rank);
  }
}

// Numbered items: those before `first` are forgotten, those from `from` on are replaced.
function spliced(known = { first: 0, list: [] }, first, from, list) {
  const kept = known.list.slice(Math.max(0, first - known.first), Math.max(0, from - known.first));
  return { first, list: kept.concat(list) };
}
