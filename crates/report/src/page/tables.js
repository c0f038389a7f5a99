/* Tables: the workers of a run, its decisions, and several runs beside each other. */

const PAGE_ROWS = 20;

function dataTable(label, names, rows, attributes = {}) {
  const cell = (content, index) => make(index === 0 ? "th" : "td", index === 0 ? { scope: "row" } : {}, content instanceof Node ? content : String(content));
  const row = (cells) => make("tr", cells.attributes ?? {}, ...cells.map(cell));
  const head = make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, make("table", attributes, head, make("tbody", {}, ...rows.map(row))));
}

/* The workers: those that others waited for come first. A page has few rows, however many workers there are. */
class WorkerTable {
  constructor(view) {
    this.view = view;
    this.page = 0;
    this.element = make("div", {});
    this.body = make("div", {});
    this.count = make("span", { class: "soft" });
    const turn = (step) => () => { this.page += step; this.draw(); };
    this.pager = make("div", { class: "keys" }, button("◀ Previous", "Previous workers", turn(-1)), button("Next ▶", "Next workers", turn(1)), this.count);
    this.element.append(this.body, this.pager);
    this.draw();
  }

  draw() {
    const { workers, ended, time } = this.view, all = workers.filter(Boolean);
    const few = all.length <= PAGE_ROWS;
    const sorted = few ? all : [...all].sort((a, b) => b.waitedFor - a.waitedFor || a.rank - b.rank);
    const pages = Math.max(1, Math.ceil(sorted.length / PAGE_ROWS));
    this.page = Math.min(pages - 1, Math.max(0, this.page));
    const shown = sorted.slice(this.page * PAGE_ROWS, (this.page + 1) * PAGE_ROWS);
    const names = ["worker", ended ? "at the end" : "now", "speed", "slowness", "batch", "computing", "waiting", "others waited", "samples used", "lost", ended ? "last report" : "reported"];
    const rows = shown.map((worker) => {
      const state = worker.late && !ended ? "late" : STATES[worker.state];
      const now = make("span", { class: "named", title: worker.reason || "" }, make("span", { class: "key", style: `background:var(--${STATES[worker.state]})` }), ended ? state : `${state} for ${duration(Math.max(0, time - worker.since))}`);
      const rank = make("span", {}, `worker ${worker.rank}`, this.view.isStraggler(worker.rank) ? make("strong", { class: "alarm" }, " ◆ straggler") : "");
      const cells = [rank, now, worker.speed == null ? "–" : `${number(worker.speed, 3)}/s`, worker.slowness == null ? "–" : `${number(worker.slowness, 3)}×`,
        worker.batch, percent(worker.computing), percent(worker.waiting), duration(worker.waitedFor), worker.used.toLocaleString("en"), worker.lost.toLocaleString("en"),
        worker.reported == null ? "–" : ended ? duration(worker.reported) : `${duration(Math.max(0, time - worker.reported))} ago`];
      cells.attributes = this.view.isStraggler(worker.rank) ? { class: "straggler" } : {};
      return cells;
    });
    // The table stays in place, so that it can be scrolled while a run goes on.
    const table = dataTable("Workers", names, rows), old = this.body.querySelector("table");
    if (old) old.replaceWith(table.querySelector("table")); else this.body.append(table);
    this.pager.hidden = pages === 1;
    setText(this.count, `${this.page * PAGE_ROWS + 1} to ${this.page * PAGE_ROWS + shown.length} of ${sorted.length}, those that others waited for first`);
  }
}

class DecisionTable {
  constructor(view) {
    this.view = view;
    this.element = make("div", {});
    this.draw();
  }

  draw() {
    const rows = this.view.decisions.slice(0, 30).map(({ action, count, at, reason }) => [action, count.toLocaleString("en"), duration(at), reason]);
    const table = dataTable("Decisions", ["decision", "how often", "last at", "why, then"], rows, { class: "decisions" }), old = this.element.querySelector("table");
    if (old) old.replaceWith(table.querySelector("table")); else this.element.append(table);
  }
}

/* Several runs: the settings in which they differ are columns. */
function settingsOf(view) {
  const lines = view.configuration.split("\n").map((line) => /^([\w-]+)\s*=\s*(.*)$/.exec(line)).filter(Boolean);
  return new Map(lines.map(([, name, value]) => [name, value.replace(/^"(.*)"$/, "$1")]));
}

function runTable(views) {
  const settings = views.map(settingsOf), ignored = ["scheme", "out", "record"];
  const differing = [...new Set(settings.flatMap((one) => [...one.keys()]))].filter((name) => !ignored.includes(name) && new Set(settings.map((one) => one.get(name))).size > 1);
  const names = ["run", "scheme", ...differing, "result", "time", "iterations", "loss", "accuracy", "waiting", "samples lost", "MB moved"];
  const rows = views.map((view, index) => {
    const s = view.summary, time = s?.time_to_target ?? s?.time ?? view.time;
    const cells = [make("span", { class: "named" }, make("span", { class: "key", style: `background:${ink(view.colour)}` }), view.name), view.scheme, ...differing.map((name) => settings[index].get(name) ?? "–"),
      s ? (s.reached ? s.stopped_by : `no: ${s.stopped_by}`) : "not finished", duration(time), view.iterations.toLocaleString("en"),
      number(s?.loss ?? view.loss), number(s?.accuracy ?? view.accuracy), percent(view.headline.waiting), view.samples.lost.toLocaleString("en"), s ? number(s.bytes / 1e6) : "–"];
    cells.attributes = index === 0 ? { class: "first" } : {};
    return cells;
  });
  return dataTable("Summary of runs", names, rows, { id: "comparison" });
}
