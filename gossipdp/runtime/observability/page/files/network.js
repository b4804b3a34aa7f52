// The picture of the network: members on a circle, links of this host, and exchanges as they happen.
import { element, printable, shortened, stateOf } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const CENTRE = { x: 240, y: 200 };
const RADIUS = 150;
const GAP = 12; // between a dot and its name
const LETTER = 10; // width of a letter of a name, mostly
const LETTERS = { least: 10, most: 20 }; // of a name
const MOST = 64; // members drawn
const LABELLED = 24; // most members with names beside them
const SPREAD = 10; // by which names near the top and the bottom are moved apart
const LIT = 2500; // milliseconds for which an exchange is lit
const LATELY = 30; // seconds after an exchange in which a link is drawn strongly
const MEANINGS = {
  alive: "trains",
  idle: "alive, does not train",
  suspect: "silent",
  failed: "failed",
  left: "left",
};

function shape(tag, attributes, title = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (title) {
    const told = document.createElementNS(SVG, "title");
    told.textContent = title;
    made.append(told);
  }
  return made;
}

export class Picture {
  constructor(svg, told, legend) {
    this.svg = svg;
    this.told = told;
    this.links = svg.appendChild(shape("g", {}));
    this.lit = svg.appendChild(shape("g", {}));
    this.nodes = svg.appendChild(shape("g", {}));
    this.exchanges = new Map(); // id -> exchanges counted at the last look
    for (const [state, meaning] of Object.entries(MEANINGS)) {
      const item = element("li", meaning);
      item.prepend(element("i", "", { class: `dot ${state}`, "aria-hidden": "true" }));
      legend.append(item);
    }
  }

  /** members: rows of the answer to `members`, this host first. linked: ids of members with a link to this host. */
  draw(members, linked) {
    const drawn = members.slice(0, MOST);
    const size = drawn.length <= 12 ? 17 : drawn.length <= LABELLED ? 12 : 7;
    const half = this.half();
    const beside = half - size - GAP;
    const letters = Math.max(LETTERS.least, Math.min(LETTERS.most, Math.floor((beside - RADIUS) / LETTER)));
    const across = Math.min(RADIUS, beside - LETTER * letters);
    const names = shortened(new Map(drawn.map((member) => [member.id, member.name])), letters);
    const places = new Map(drawn.map((member, at) => [member.id, place(at, drawn.length, across)]));
    const me = places.get((drawn.find((member) => member.me) ?? {}).id);
    this.links.replaceChildren();
    this.nodes.replaceChildren();
    this.svg.classList.toggle("crowded", drawn.length > 12);
    for (const member of drawn) {
      const at = places.get(member.id);
      if (me && !member.me && linked.has(member.id)) this.links.append(link(me, at, member));
      const made = this.nodes.appendChild(node(member, at, size));
      if (drawn.length <= LABELLED) fit(made.appendChild(label(names.get(member.id), at, size)), half);
      this.light(member, me, at);
    }
    const links = drawn.filter((member) => linked.has(member.id)).length;
    const left = members.length - drawn.length;
    this.told.textContent =
      `${members.length} members, ${links} linked to this host.` + (left ? ` ${left} more are not drawn.` : "");
  }

  /** Half of the width that is seen. The picture is as high as its box, or as wide. */
  half() {
    const { clientWidth: wide, clientHeight: high } = this.svg;
    return wide && high ? Math.max(CENTRE.x, (CENTRE.y * wide) / high) : CENTRE.x;
  }

  /** Light the line to a member with which an exchange has ended since the last look. */
  light(member, me, at) {
    const before = this.exchanges.get(member.id);
    this.exchanges.set(member.id, member.exchanges);
    if (!me || member.me || before === undefined || member.exchanges <= before) return;
    const line = shape("line", { x1: me.x, y1: me.y, x2: at.x, y2: at.y, class: "lit" });
    const glow = shape("circle", { cx: at.x, cy: at.y, r: 26, class: "glow" });
    this.lit.append(line, glow);
    setTimeout(() => {
      line.remove();
      glow.remove();
    }, LIT);
  }
}

function place(at, count, across) {
  const angle = (2 * Math.PI * at) / count - Math.PI / 2;
  const [wide, high] = count === 1 ? [0, 0] : [across, RADIUS];
  return { x: CENTRE.x + wide * Math.cos(angle), y: CENTRE.y + high * Math.sin(angle), angle };
}

function link(me, at, member) {
  const lately = member.last_exchange !== null && member.last_exchange < LATELY;
  return shape("line", { x1: me.x, y1: me.y, x2: at.x, y2: at.y, class: lately ? "link lately" : "link" });
}

function node(member, at, size) {
  const state = stateOf(member);
  const name = printable(member.name);
  const made = shape("g", { class: "node" }, `${name}${member.me ? " (this host)" : ""}: ${MEANINGS[state] ?? state}`);
  const kind = Object.hasOwn(MEANINGS, state) ? state : "unknown";
  made.append(shape("circle", { cx: at.x, cy: at.y, r: size, class: `dot ${kind}${member.me ? " me" : ""}` }));
  return made;
}

/** The name beside a dot. */
function label(name, at, size) {
  const side = Math.abs(Math.cos(at.angle)) < 0.2 ? "middle" : Math.cos(at.angle) > 0 ? "start" : "end";
  const gap = size + GAP;
  const x = side === "middle" ? at.x : at.x + (side === "start" ? gap : -gap);
  const y = side !== "middle" ? at.y + 5 + SPREAD * Math.sin(at.angle) : at.y + (Math.sin(at.angle) > 0 ? gap + 10 : -gap);
  const made = shape("text", { x, y, "text-anchor": side });
  made.textContent = name;
  return made;
}

/** Press a name of wide letters together, so that it ends inside the picture. */
function fit(text, half) {
  if (text.getAttribute("text-anchor") === "middle") return;
  const room = half - Math.abs(text.getAttribute("x") - CENTRE.x) - 1;
  if (text.getComputedTextLength() <= room) return;
  text.setAttribute("textLength", room);
  text.setAttribute("lengthAdjust", "spacingAndGlyphs");
}
