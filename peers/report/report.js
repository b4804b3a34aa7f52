// Draws the figures of the report. Names of peers become text, never HTML.
import { Plot, joined } from "./plots.js";
import { element, printable } from "./text.js";

for (const { title, x, unit, curves } of JSON.parse(document.getElementById("data").textContent)) {
  const section = document.createElement("section");
  const box = element("div", "", { class: "plot", role: "img" });
  section.append(element("h3", title), box);
  document.getElementById("figures").append(section);
  const lines = curves.map(({ name, colour, dotted }) => ({ name: printable(name), colour, dotted }));
  new Plot(box, { unit }).show(joined(curves.map(({ points }) => points)), lines, x === "time");
}
