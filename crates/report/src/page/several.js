/* Several runs: which was best and why, what each did at the same time, and their curves. */

// What was best, and what to use.
function verdict(views, comparison) {
  const sentence = (text) => make("p", { class: "sentence" }, unbroken(text)), cost = (text) => make("p", { class: "cost" }, unbroken(text));
  const shown = views.find((view) => view.scheme === "bsp") ?? views[0];
  if (!shown) return [];
  const straggled = shown.headline;
  if (!comparison) return [sentence(`${counted(views.length, "run")}: ${straggled.sentence}`), cost(`${shown.scheme}: ${straggled.cost}`)];
  const answer = ({ name, text, command }) => make("li", {}, make("p", {}, make("strong", {}, `${name}: `), unbroken(text)), ...(command ? [make("pre", {}, command)] : []));
  return [sentence(comparison.verdict), cost(comparison.reasons), make("ul", { class: "answers" }, ...comparison.answers.map(answer)),
    make("p", { class: "soft" }, `Under ${shown.name}: ${straggled.sentence} ${straggled.cost}`)];
}

// A part of the axis in which all runs went on and are known in detail: ten seconds, or some ten steps where that is too much
// or too little. Null if that is nearly all.
function commonPart(views) {
  const reference = views.find((view) => view.scheme === "bsp") ?? views[0], step = reference.time / Math.max(1, reference.iterations);
  const ends = views.flatMap((view) => [view.time, ...view.segments.map(({ list }) => (list.length ? list[list.length - 1].to : Infinity))]);
  const shortest = Math.min(...ends), power = 10 ** Math.floor(Math.log10(10 * step));
  const length = 10 > 2.5 * step && 10 < 60 * step ? 10 : [1, 2, 5, 10].find((digit) => digit * power >= 8 * step) * power;
  if (!(length > 0) || length > 0.8 * shortest) return null;
  const from = Math.floor((shortest - length) / 2 / length) * length;
  return { from, to: from + length, length };
}

function severalRuns(views, contestants, comparison) {
  const axis = new TimeAxis(Math.max(0, ...views.map((view) => view.time))), part = views.length ? commonPart(views) : null;
  axis.extend(axis.end);
  if (part) axis.move(part.from, part.to);
  const multiple = (view) => {
    const timeline = new Timeline(view, axis, { named: 12, compact: true });
    const title = make("h3", {}, make("span", { class: "key", style: `background:${view.colour}` }), view.name);
    const words = make("p", { class: "soft" }, `${view.story} ${view.headline.sentence} ${view.headline.cost}`);
    return make("div", { class: "multiple" }, make("div", {}, title, words), timeline.element);
  };
  const together = section(part ? `What every worker did in the same ${duration(part.length)}` : "What every worker did",
    make("p", { class: "soft" }, "All timelines have one axis: what is below each other happened at the same time. “All” shows the runs from their start to their end. " + HOW_TO_READ),
    timelineControls(axis, false), timelineKeys(), ...views.map(multiple));
  const groups = contestants.map((one) => ({ ...one, views: one.runs.map((index) => views[index]) })).filter((one) => one.views.length);
  const isStrong = (one) => one === groups[0] || one.name === "bsp" || groups.length <= 4;
  const chart = (heading) => {
    const having = groups.filter(({ views }) => views[0].curve(heading).length);
    return having.length ? [new Chart(heading, () => having.map((one) => contestantCurve(one, heading, isStrong(one))), { smooth: true }).element] : [];
  };
  const own = RUN_CHARTS.slice(3).flatMap((heading) => views.filter((view) => view.curve(heading).length)
    .map((view) => new Chart(`${heading}, ${view.name}`, () => runCurves(() => view, heading), { smooth: SMOOTHED[heading] }).element));
  const configuration = (view) => make("details", {}, make("summary", {}, view.name), make("pre", {}, view.configuration));
  const ranking = comparison && section("Ranking",
    make("p", { class: "soft" }, "A small dot is a run with one seed; the large one is their mean, with its 95 % interval. Ratios are those of runs with the same seed."),
    new RankingPicture(contestants, comparison.target).element);
  return [make("div", { class: "headline" }, ...verdict(views, comparison)), ...(ranking ? [ranking] : []), together,
    section("Curves", make("div", { class: "charts" }, ...RUN_CHARTS.slice(0, 3).flatMap(chart))),
    section("Runs", runTable(views)),
    ...(own.length ? [section("What the schemes chose", make("div", { class: "charts" }, ...own))] : []),
    section("Configuration", ...views.map(configuration))];
}
