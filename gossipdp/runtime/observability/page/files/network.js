// The picture of the network: members on a circle, links of this host, and exchanges as they happen.
import { element, named, printable, stateOf } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const CENTRE = { x: 240, y: 200 };
const RADIUS = 150;
const NARROW = 420; // pixels below which names beside the picture need a part of its width
const NARROWER = { across: 104, letters: 10 };
const WIDER = { across: RADIUS, letters: 12 };
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
    const form = this.svg.clientWidth < NARROW ? NARROWER : WIDER;
    const places = new Map(drawn.map((member, at) => [member.id, place(at, drawn.length, form.across)]));
    const me = places.get((drawn.find((member) => member.me) ?? {}).id);
    this.links.replaceChildren();
    this.nodes.replaceChildren();
    const size = drawn.length <= 12 ? 17 : drawn.length <= LABELLED ? 12 : 7;
    this.svg.classList.toggle("crowded", drawn.length > 12);
    for (const member of drawn) {
      const at = places.get(member.id);
      if (me && !member.me && linked.has(member.id)) this.links.append(link(me, at, member));
      this.nodes.append(node(member, at, size, drawn.length <= LABELLED ? form.letters : 0));
      this.light(member, me, at);
    }
    const links = drawn.filter((member) => linked.has(member.id)).length;
    const left = members.length - drawn.length;
    this.told.textContent =
      `${members.length} members, ${links} linked to this host.` + (left ? ` ${left} more are not drawn.` : "");
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

/** letters: of the name beside the dot, at most; 0 for none. */
function node(member, at, size, letters) {
  const state = stateOf(member);
  const name = printable(member.name);
  const made = shape("g", { class: "node" }, `${name}${member.me ? " (this host)" : ""}: ${MEANINGS[state] ?? state}`);
  const kind = Object.hasOwn(MEANINGS, state) ? state : "unknown";
  made.append(shape("circle", { cx: at.x, cy: at.y, r: size, class: `dot ${kind}${member.me ? " me" : ""}` }));
  if (letters) {
    const side = Math.abs(Math.cos(at.angle)) < 0.2 ? "middle" : Math.cos(at.angle) > 0 ? "start" : "end";
    const gap = size + 12;
    const x = side === "middle" ? at.x : at.x + (side === "start" ? gap : -gap);
    const y = side !== "middle" ? at.y + 5 + SPREAD * Math.sin(at.angle) : at.y + (Math.sin(at.angle) > 0 ? gap + 10 : -gap);
    const label = shape("text", { x, y, "text-anchor": side });
    label.textContent = named(member.name, letters);
    made.append(label);
  }
  return made;
}
