/* The ranking as a picture: for every contestant a dot per seed, and the mean time to target with its 95 % interval. */

// What a contestant's times come to, beside the baseline.
function rankText({ place, scheme, reached, runs, speedup, speedup_low: low, speedup_high: high, difference }) {
  if (reached < runs) return reached ? `reached with ${reached} of ${counted(runs, "seed")}` : "not reached";
  if (scheme === "bsp" || speedup == null) return "";
  const times = `${ratio(speedup)}×`;
  if (low == null) return `${times} bsp (too few seeds)`;
  const ends = `${ratio(low)} to ${ratio(high)}`;
  return difference === "none" ? `no difference (${ends})` : `${times} bsp (${ends})`;
}

class RankingPicture {
  constructor(contestants, target) {
    this.ranked = contestants.filter(({ rank }) => rank).sort((a, b) => a.rank.place - b.rank.place);
    this.target = target;
    this.svg = make("svg", { role: "img", "aria-label": this.ranked.map((one) => this.words(one)).join(" ") });
    this.element = make("div", { class: "ranking" }, this.svg);
    onResize(this.element, () => this.draw());
    // Drawn at once, so that printing or saving the page includes it.
    this.draw();
  }

  words({ name, rank }) {
    return `${rank.place}. ${name}: ${rank.interval.length ? `${duration(rank.interval[1])}, ` : ""}${rankText(rank) || "the baseline"}.`;
  }

  draw() {
    const { ranked } = this, width = this.element.clientWidth || 900, isWide = width > 700;
    const times = ranked.flatMap(({ rank }) => [...rank.interval, ...rank.times.map(([, time]) => time)]).filter((time) => time > 0);
    if (!times.length) return this.svg.replaceChildren();
    // Beside the bars, or above them where there is no room.
    const [left, right, row, bar] = isWide ? [190, 215, 26, 13] : [4, 12, 44, 31];
    const [low, high] = [Math.min(...times), Math.max(...times)], isFar = high > 6 * low;
    const place = isFar ? (time) => Math.log(time / low) / Math.log(high / low) : (time) => time / high;
    const x = (time) => left + 6 + place(time) * (width - left - right - 12), height = ranked.length * row + 44;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = `${height}px`;
    const nodes = [], bottom = ranked.length * row + 4;
    const marks = isFar ? [1, 2, 5].flatMap((digit) => [...Array(9).keys()].map((power) => digit * 10 ** (power - 3))).filter((time) => time >= low && time <= high) : ticks(0, high, isWide ? 6 : 3);
    let last = -Infinity;
    for (const time of marks.filter((time) => time >= 0)) {
      nodes.push(make("line", { class: "grid", x1: x(time), x2: x(time), y1: 0, y2: bottom }));
      if (x(time) - last < 48) continue;
      last = x(time);
      nodes.push(make("text", { x: x(time), y: bottom + 16, "text-anchor": "middle" }, duration(time)));
    }
    nodes.push(make("text", { x: left + 6, y: bottom + 34 }, `time to ${this.target}${isFar ? ", logarithmic" : ""}`));
    const bsp = ranked.find(({ name }) => name === "bsp")?.rank.interval[1];
    if (bsp) nodes.push(make("line", { class: "baseline", x1: x(bsp), x2: x(bsp), y1: 0, y2: bottom }));
    ranked.forEach(({ name, colour, rank }, index) => {
      const top = index * row, y = top + bar, strong = rank.place === 1 || name === "bsp" ? 600 : 400;
      const named = { y: isWide ? y + 4 : top + 16, "font-weight": strong };
      nodes.push(make("text", { ...named, class: "name", x: isWide ? left - 8 : left, "text-anchor": isWide ? "end" : "start" }, name));
      nodes.push(make("text", { ...named, x: isWide ? width - right + 8 : width - 4, "text-anchor": isWide ? "start" : "end" }, rankText(rank)));
      const [from, mean, to] = rank.interval;
      if (mean) nodes.push(make("line", { x1: x(from), x2: x(to), y1: y, y2: y, stroke: colour, "stroke-width": 5, "stroke-opacity": 0.45, "stroke-linecap": "round" }));
      for (const [seed, time] of rank.times) {
        if (time) nodes.push(make("circle", { cx: x(time), cy: y, r: 2.6, fill: colour, "fill-opacity": 0.7 }, make("title", {}, `seed ${seed}: ${duration(time)}`)));
      }
      if (mean) nodes.push(make("circle", { class: "mean", cx: x(mean), cy: y, r: 5.5, fill: colour }, make("title", {}, `${name}: ${duration(mean)}`)));
    });
    this.svg.replaceChildren(...nodes);
  }
}
