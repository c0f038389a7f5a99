"use strict";
/* What all parts of the page use: elements, numbers, colours. */

// The activities, in the order of the data.
const STATES = ["computing", "waiting", "communicating", "dropped", "absent"];
const MEANING = {
  computing: "computing", waiting: "waiting", communicating: "communicating",
  dropped: "dropped work (late, interrupted or lost)", absent: "absent",
};
// Okabe and Ito's colours, for workers; a run has its scheme's colour.
const PALETTE = ["#0072b2", "#d08700", "#009e73", "#b8578a", "#3d9bd0", "#d55e00", "", "#83832c"];

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "tspan", "circle", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// A scheme without a colour has that of text, so that it is visible on dark paper.
const ink = (colour) => colour || "var(--ink)";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const number = (value, digits = 4) => (value == null || Number.isNaN(value) ? "–" : String(Number(Number(value).toPrecision(digits))));
const percent = (share) => (share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`);
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

const ratio = (value) => (value < 100 ? value.toPrecision(3) : String(Math.round(value)));
// Keeps a number and its unit in one line.
const unbroken = (text) => text.replace(/(\d) (s|ms|min|h|d|%|×)(?![a-z])/g, "$1\u00a0$2");

function duration(value) {
  if (value == null) return "–";
  if (value > 0 && value < 0.1) return value < 0.001 ? "< 1 ms" : `${number(1000 * value, 3)} ms`;
  if (value < 1000) return `${number(value, value < 10 ? 3 : 4)} s`;
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(value / unit));
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return `${minutes} min ${Math.floor(value % 60)} s`;
}

// Round numbers between two bounds.
function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

const section = (heading, ...children) => make("section", {}, make("h2", {}, heading), ...children);
const button = (text, label, action) => make("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
const key = (colour, text) => make("span", { class: "named" }, make("span", { class: "key", style: `background:${colour}` }), text);

// Sets a text only if it differs, so that screen readers and the layout are left alone.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The first item whose key is greater than a value; the list is in the order of the key.
function after(list, key, value) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle][key] > value) high = middle; else low = middle + 1;
  }
  return low;
}

// Draws an element again when its width has changed, in the next frame: drawing may change its height.
function onResize(element, draw) {
  let width = null;
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  })).observe(element);
}
