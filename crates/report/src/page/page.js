/* The page: of one run, which may go on, or of several. */

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main"), state = document.getElementById("state");

// A number with its name.
class Tile {
  constructor(name) {
    this.value = make("dd", {});
    this.element = make("div", { class: "tile" }, make("dt", {}, name), this.value);
  }

  set(text) {
    setText(this.value, unbroken(String(text)));
  }
}

/* One run. The elements are made once; `update` gives them what is new. */
class RunPage {
  constructor(view, live) {
    Object.assign(this, { view, live, charts: new Map() });
    this.axis = new TimeAxis(view.time);
    if (live) this.axis.length = 60;
    this.axis.extend(view.time);
    this.sentence = make("p", { class: "sentence" });
    this.cost = make("p", { class: "cost" });
    this.story = make("p", { class: "story soft" });
    this.tiles = [view.virtualTime ? "virtual time" : "time", "iterations", "loss", "accuracy", "workers", "waiting", "samples used", "samples lost", "under way"].map((name) => new Tile(name));
    this.timeline = new Timeline(view, this.axis);
    this.workers = new WorkerTable(view);
    this.decisions = new DecisionTable(view);
    this.notices = make("ol", { class: "notices", reversed: "" });
    this.noticeSection = section("What happened", this.notices);
    this.chartGrid = make("div", { class: "charts" });
    this.chartSection = section("Curves", this.chartGrid);
    this.element = make("div", {},
      make("div", { class: "headline", "aria-live": live ? "off" : "polite" }, this.sentence, this.cost, this.story),
      make("dl", { class: "tiles" }, ...this.tiles.map((tile) => tile.element)),
      section("Timeline", timelineControls(this.axis, live), timelineKeys(), this.timeline.element),
      this.chartSection, section("Workers", this.workers.element), section("Decisions", this.decisions.element), this.noticeSection,
      section("Configuration", make("details", {}, make("summary", {}, "All options"), make("pre", {}, view.configuration))));
    this.update();
  }

  update() {
    const { view } = this, { headline, samples } = view;
    setText(this.sentence, unbroken(headline.sentence));
    setText(this.cost, unbroken(headline.cost));
    setText(this.story, unbroken(view.story));
    this.sentence.classList.toggle("costly", headline.is_costly);
    const all = samples.used + samples.lost + samples.pending || 1;
    const values = [duration(view.time), view.iterations.toLocaleString("en"), number(view.loss), number(view.accuracy), view.ended ? view.workers.length : `${view.present} of ${Math.max(view.expected, view.present)}`,
      percent(headline.waiting), samples.used.toLocaleString("en"), `${samples.lost.toLocaleString("en")} (${percent(samples.lost / all)})`, samples.pending.toLocaleString("en")];
    this.tiles.forEach((tile, index) => tile.set(values[index]));
    for (const heading of RUN_CHARTS) {
      const curves = view.curve(heading);
      // A number that never changed needs no picture.
      if (!curves.some(({ points }) => points.some(([, value]) => value !== points[0][1]))) continue;
      if (!this.charts.has(heading)) {
        const chart = new Chart(heading, () => runCurves(() => this.view, heading), { smooth: SMOOTHED[heading] });
        this.charts.set(heading, chart);
        this.chartGrid.append(chart.element);
      } else this.charts.get(heading).draw();
    }
    this.chartSection.hidden = !this.charts.size;
    this.workers.draw();
    this.decisions.draw();
    const notices = view.notices.list;
    this.noticeSection.hidden = !notices.length;
    this.notices.replaceChildren(...notices.slice(-50).reverse().map(([at, text]) => make("li", {}, make("span", { class: "soft" }, `${duration(at)} `), text)));
    this.axis.extend(view.time);
    this.timeline.draw();
  }

  // All of the run anew, after the connection was lost.
  show(view) {
    this.view = this.timeline.view = this.workers.view = this.decisions.view = view;
  }
}

/* A run that goes on. */
function follow() {
  let page = null, source = null, pending = false;
  const say = (kind, text) => { state.dataset.state = kind; setText(state, text); };
  say("waiting", "connecting");
  const draw = () => {
    pending = false;
    const { view } = page;
    page.update();
    document.title = `${view.ended ? "✓" : "●"} ${view.iterations} · ${data.title} · Paceline`;
    say(view.ended ? "ended" : "live", view.ended ? "ended" : "live");
    if (view.ended) source.close();
  };
  const connect = () => {
    source = new EventSource("events");
    source.addEventListener("run", (event) => {
      const view = new RunView(JSON.parse(event.data));
      if (page) page.show(view);
      else main.replaceChildren((page = new RunPage(view, true)).element);
      draw();
    });
    source.addEventListener("change", (event) => {
      page.view.apply(JSON.parse(event.data));
      if (!pending) { pending = true; requestAnimationFrame(draw); }
    });
    source.onerror = () => {
      if (page?.view.ended) return source.close();
      say("waiting", "connection lost, trying again");
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    };
  };
  connect();
}

document.title = `${data.title} · Paceline`;
setText(document.getElementById("title"), data.title);
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.dispatchEvent(new Event("themechange"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
if (data.live) follow();
else if (data.runs.length === 1) {
  const view = new RunView(data.runs[0]);
  state.dataset.state = "ended";
  setText(state, view.summary ? "ended" : "not finished");
  view.ended = true;
  main.append(new RunPage(view, false).element);
} else {
  state.hidden = true;
  const views = data.runs.map((run) => Object.assign(new RunView(run), { ended: true }));
  main.append(...severalRuns(views, data.contestants, data.comparison));
}
