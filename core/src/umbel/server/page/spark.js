// A small graph of the last two minutes.

import { h, svg } from "./dom.js";

export const SPAN = 120; // seconds
const GAP = 4; // seconds without a sample: the line is broken
const WIDTH = 240;
const HEIGHT = 36;

/** Points as runs without a gap: [[x, y], ...] each. `samples` are [seconds, value]. */
export function runs(samples, now, low, high) {
  const found = [];
  let last = -Infinity;
  for (const [time, value] of samples) {
    if (time - last > GAP) found.push([]);
    last = time;
    const x = WIDTH * (1 - (now - time) / SPAN);
    const y = HEIGHT - 1.5 - (HEIGHT - 4) * ((value - low) / (high - low || 1));
    found[found.length - 1].push([x, y]);
  }
  return found;
}

const steps = (points) => points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

export class Spark {
  /** `format` makes a text of a value; `low` and `high` bound the scale where they are given. */
  constructor(label, format, { low = 0, high = null } = {}) {
    Object.assign(this, { label, format, low, high });
    this.samples = [];
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    const box = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
    this.graph = svg("svg", { class: "spark", ...box }, this.area, this.line);
    this.value = h("output", { text: "–" });
    const head = h("div", { class: "row" }, h("span", { text: label }), this.value);
    this.root = h("div", { class: "gauge" }, head, this.graph);
  }

  /** Adds a sample, or only moves on where the value is none; `shown` is the text of it. */
  add(time, value, shown = null) {
    if (Number.isFinite(value)) this.samples.push([time, value]);
    this.samples = this.samples.filter(([then]) => time - then <= SPAN && then <= time);
    this.value.value = shown ?? (Number.isFinite(value) ? this.format(value) : "–");
    this.draw(time);
  }

  draw(now) {
    const values = this.samples.map(([, value]) => value);
    const most = Math.max(this.low, ...values);
    const high = this.high ?? (most > this.low ? this.low + (most - this.low) * 1.1 : this.low + 1);
    const low = Math.min(this.low, ...values);
    const found = runs(this.samples, now, low, Math.max(high, most));
    this.line.setAttribute("d", found.map((points) => `M${steps(points)}`).join(""));
    const floors = found.map((points) => {
      const [from, to] = [points[0][0], points[points.length - 1][0]];
      return `M${from.toFixed(1)} ${HEIGHT}L${steps(points)}L${to.toFixed(1)} ${HEIGHT}Z`;
    });
    this.area.setAttribute("d", floors.join(""));
    const top = values.length ? `, at most ${this.format(most)} in two minutes` : "";
    this.graph.setAttribute("aria-label", `${this.label}: ${this.value.value}${top}`);
  }
}
