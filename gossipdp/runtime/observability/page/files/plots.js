// Plots by uPlot, in the colours of plots.css. The status page and the report of a run draw with them.
import { isKnown, quantity } from "./text.js";

/* global uPlot */

const HEIGHT = 230;
const COLOURS = 8;
const DAY = 86400;

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A plot in `box` that is as wide as the box. It is made anew when its lines have other names. */
export class Plot {
  /** unit: of the values. second: name of the line that has the scale on the right. */
  constructor(box, { unit = "", second = "" } = {}) {
    this.box = box;
    this.unit = unit;
    this.second = second;
    this.made = null;
    this.key = "";
    new ResizeObserver(() => this.fit()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.made?.redraw());
  }

  /** data: columns, the first one is x. lines: name of each, and optionally number of its colour, dotted or strong. */
  show(data, lines, overTime = true) {
    const key = JSON.stringify([lines, overTime]);
    if (key !== this.key) {
      this.made?.destroy();
      this.key = key;
      this.made = new uPlot(this.options(lines, overTime), data, this.box);
    } else {
      this.made.setData(data);
    }
    this.box.setAttribute("aria-label", lines.map(({ name }, at) => `${name}: ${told(data[at + 1], this.unit)}`).join("; "));
  }

  fit() {
    const width = this.box.clientWidth;
    if (this.made && width) this.made.setSize({ width, height: HEIGHT });
  }

  options(lines, overTime) {
    const number = (plot, value, series, at) => {
      const told = at === null ? plot.data[series].findLast(isKnown) : value;
      return isKnown(told) ? quantity(told, this.unit) : "–";
    };
    const time = uPlot.fmtDate("{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}");
    const place = (_, value) => (isKnown(value) ? (overTime ? time(new Date(1000 * value)) : quantity(value)) : "last");
    const ticks = (_, values) => values.map((value) => (value === null ? "" : quantity(value, this.unit)));
    const plain = (_, values) => values.map((value) => (value === null ? "" : String(Number(value.toPrecision(3)))));
    const line = () => css("--line");
    const axis = { stroke: () => css("--muted"), grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const x = { label: overTime ? "time" : "samples", value: place };
    const right = { ...axis, scale: "right", side: 1, size: 62, values: plain, grid: { show: false } };
    return {
      width: this.box.clientWidth || 300,
      height: HEIGHT,
      scales: { x: { time: overTime }, y: { range: bounds }, right: { range: bounds } },
      axes: [
        { ...axis, space: 80, values: overTime ? clock : (_, values) => values.map((value) => quantity(value)) },
        { ...axis, size: 74, values: this.second ? plain : ticks },
        ...(this.second ? [right] : []),
      ],
      series: [x, ...lines.map((each, at) => this.line(each, at, number))],
      cursor: { points: { size: 6 }, dataIdx: nearest },
    };
  }

  line({ name, colour, dotted = false, strong = false }, at, number) {
    const hue = colour ?? at;
    return {
      label: name,
      stroke: () => css(`--line-${hue % COLOURS}`),
      width: strong ? 2.5 : 1.5,
      dash: dotted ? [2, 3] : hue >= COLOURS ? [6, 4] : undefined,
      spanGaps: true,
      scale: name === this.second ? "right" : "y",
      value: number,
      points: { show: (plot, series) => plot.data[series].filter(isKnown).length < 3, size: 5 },
    };
  }
}

/** Columns over one x that holds the points of all curves, of which each is a list of [x, y]. Gaps are undefined. */
export function joined(curves) {
  return uPlot.join(curves.map((points) => [points.map(([x]) => x), points.map(([, y]) => y)]));
}

/** Bounds of an axis with some air, from 0 if the values are near it. */
function bounds(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const air = 0.08 * (high - low || Math.abs(high) || 1);
  return [low >= 0 && low <= 0.4 * high ? 0 : low - air, high + air];
}

/** Times on the axis: days, minutes or seconds, as the distance between them needs. */
function clock(_, values, axis, space, distance) {
  const text = uPlot.fmtDate(distance >= DAY ? "{YYYY}-{MM}-{DD}" : distance >= 60 ? "{HH}:{mm}" : "{HH}:{mm}:{ss}");
  return values.map((value) => text(new Date(1000 * value)));
}

/** Where the cursor reads a line: at its own value that is nearest to the index `at` of x. */
function nearest(plot, series, at) {
  const column = plot.data[series];
  for (let off = 0; off < column.length; off += 1) {
    const near = [at - off, at + off].find((index) => isKnown(column[index]));
    if (near !== undefined) return near;
  }
  return at;
}

function told(column, unit) {
  const last = column.findLast(isKnown);
  return last === undefined ? "no value yet" : `last ${quantity(last, unit)}`;
}
