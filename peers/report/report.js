"use strict";
// Draws the figures of the report with uPlot. Names of peers become text, never HTML.
const COLOURS = ["#2f6fde", "#d9822b", "#2a9d63", "#c23b5a", "#7a57c9", "#12939a", "#8a6d3b", "#5f6b7a"];
const style = getComputedStyle(document.documentElement);
const soft = style.getPropertyValue("--soft").trim();
const line = style.getPropertyValue("--line").trim();

function short(value) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
  }
  return String(+value.toPrecision(4));
}

// The labels of a time axis, by the step between two of them in seconds.
function clock(_plot, all, _axis, _space, step) {
  return all.map((seconds) => {
    const text = new Date(seconds * 1000 - new Date(seconds * 1000).getTimezoneOffset() * 60000).toISOString();
    return step < 60 ? text.slice(11, 19) : step < 86400 ? text.slice(11, 16) : text.slice(5, 10);
  });
}

function draw(figure, place) {
  const tables = figure.curves.map((curve) => [curve.points.map((p) => p[0]), curve.points.map((p) => p[1])]);
  const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const across = { ...axis, space: 75, values: figure.x === "time" ? clock : (_, all) => all.map(short) };
  const series = figure.curves.map((curve, at) => ({
    label: curve.name,
    stroke: COLOURS[at % COLOURS.length],
    width: 1.5,
    dash: curve.name.endsWith(", evaluation") ? [6, 4] : undefined,
    spanGaps: true,
    value: (_, value) => (value === null ? "-" : short(value)),
  }));
  const plot = new uPlot({
    width: place.clientWidth,
    height: 260,
    scales: { x: { time: figure.x === "time" } },
    axes: [across, { ...axis, size: 60, values: (_, all) => all.map(short) }],
    series: [{ label: figure.x }, ...series],
  }, uPlot.join(tables), place);
  addEventListener("resize", () => plot.setSize({ width: place.clientWidth, height: 260 }));
}

for (const figure of JSON.parse(document.getElementById("data").textContent)) {
  const section = document.createElement("section");
  const title = document.createElement("h3");
  title.textContent = figure.title;
  section.append(title);
  document.getElementById("figures").append(section);
  draw(figure, section);
}
