// Figures, tables and lists of the page.
import { element, fixed, isKnown, milliseconds, printable, quantity, spoken, stateOf } from "./text.js";

const GONE = 3600; // seconds after which a member that failed or left is not shown
const MOST = 200; // rows of members

const MEMBER_COLUMNS = [
  ["name", "This host is first; via: the member that carries to it", (member) => named(member), "name"],
  ["state", "alive; idle: alive, does not train; suspect: silent; failed; left", stateOf],
  ["round", "Rounds that it has made, in all its lives", (member) => member.round ?? "–", "number"],
  ["loss", "Its training loss, last reported", (member) => fixed(member.loss ?? NaN, 4), "number"],
  ["samples/s", "Samples a second that it trains", (member) => quantity(member.samples_per_second ?? NaN), "number minor"],
  ["last", "Time since this host's last exchange with it", (member) => spoken(member.last_exchange ?? NaN), "number"],
  ["ping", "Round-trip time from here", (member) => milliseconds(member.rtt ?? NaN), "number minor"],
  ["received", "Bytes that this host received from it", (member) => quantity(member.received, "B"), "number minor"],
  ["sent", "Bytes that this host sent to it", (member) => quantity(member.sent, "B"), "number minor"],
];
const EXCHANGE_COLUMNS = [
  ["ended", "", (exchange) => `${spoken(exchange.ago)} ago`, "number"],
  ["with", "", (exchange, names) => names.get(exchange.partner) ?? exchange.partner.slice(0, 8), "name"],
  ["result", "", (exchange) => exchange.result],
  ["mixed", "Chunks of the model that were averaged", (exchange) => (exchange.chunks ? `${exchange.chunks} of ${exchange.of}` : "nothing"), "number"],
  ["received", "", (exchange) => quantity(exchange.received_bytes, "B"), "number minor"],
  ["sent", "", (exchange) => quantity(exchange.sent_bytes, "B"), "number minor"],
  ["took", "", (exchange) => `${fixed(exchange.seconds, 1)} s`, "number minor"],
];

function named(member) {
  const via = member.path?.startsWith("via ") ? `, ${member.path}` : "";
  return printable(member.name + via);
}

/** Members that are there, or have gone within an hour. */
export function recent(members) {
  return members.filter((member) => (member.gone ?? 0) < GONE);
}

export function showFigures(list, status) {
  const members = status.members ?? {};
  const missing = (members.suspect ?? 0) + (members.failed ?? 0);
  const figures = [
    ["Members alive", String(members.alive ?? 0), missing ? `${missing} silent or failed` : ""],
    ["Round", String(status.round), `${quantity(status.steps)} steps`],
    ["Loss", fixed(status.loss ?? NaN, 4), status.eval_loss === null ? "" : `evaluation ${fixed(status.eval_loss, 4)}`],
    ["Samples per second", quantity(status.network_samples_per_second ?? NaN), `this host ${quantity(status.samples_per_second ?? NaN)}`],
    ["Agreement", fixed(status.consensus_ratio ?? NaN, 2), status.warming_up ? "warm start" : "ratio, normal up to 2.5"],
    ["Time lost", status.stall_seconds ? spoken(status.stall_seconds) : "0 s", "of this training process"],
    ["Received", quantity(status.received_bytes, "B"), `sent ${quantity(status.sent_bytes, "B")}`],
    ["Up", spoken(status.uptime), status.training === "attached" ? "training attached" : "no training process"],
  ];
  list.replaceChildren(
    ...figures.map(([name, value, more]) => {
      const figure = element("div");
      figure.append(element("dt", name), element("dd", value), element("dd", more, { class: "note" }));
      return figure;
    }),
  );
}

export function showMembers(table, more, members) {
  fill(table, MEMBER_COLUMNS, members.slice(0, MOST), undefined, (member, row) => {
    row.classList.toggle("me", Boolean(member.me));
    const state = stateOf(member);
    const dot = element("i", "", { class: `dot ${state}`, "aria-hidden": "true" });
    row.cells[1].replaceChildren(dot, element("span", state, { class: "word" }));
  });
  more.textContent = members.length > MOST ? `${members.length - MOST} more: see gossipdp members` : "";
}

export function showExchanges(table, exchanges, names) {
  fill(table, EXCHANGE_COLUMNS, exchanges.slice(0, 8), names, (exchange, row) => {
    row.classList.toggle("nothing", !exchange.chunks);
  });
}

/** Bars as long as each member's steps. */
export function showContribution(list, members) {
  const known = members.filter((member) => Number.isFinite(member.steps)).sort((a, b) => b.steps - a.steps);
  const most = Math.max(1, ...known.map((member) => member.steps));
  const all = known.reduce((sum, member) => sum + member.steps, 0) || 1;
  list.replaceChildren(
    ...known.slice(0, 16).map((member) => {
      const item = element("li");
      const bar = element("span", "", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${(100 * member.steps) / most}%`;
      const track = element("span", "", { class: "track" });
      track.append(bar);
      const share = `${quantity(member.steps)} (${Math.round((100 * member.steps) / all)} %)`;
      item.append(element("span", printable(member.name), { class: "who" }), track, element("span", share, { class: "share" }));
      return item;
    }),
  );
}

/**
 * Notices, each with what to do, and what to do about the verdict, whose text names its causes. A healthy peer's are
 * over, or do not hinder it.
 */
export function showNotices(panel, title, list, status) {
  const healthy = status.verdict?.state === "healthy";
  const advice = status.do ?? {};
  const ago = (notice) => (isKnown(status.notices_ago?.[notice]) ? ` (${spoken(status.notices_ago[notice])} ago)` : "");
  const told = [...(status.notices ?? [])]
    .reverse()
    .map((notice) => [printable(notice, 400) + ago(notice), advice[notice.split(" ")[0]] ?? ""]);
  const ways = (status.verdict?.do ?? []).map((way) => ["", way]);
  list.replaceChildren(
    ...[...ways, ...told].map(([text, way]) => {
      const item = element("li");
      if (text) item.append(element("span", text));
      if (way) item.append(element("span", `${healthy ? "If it comes again" : "What to do"}: ${printable(way, 400)}`, { class: "do" }));
      return item;
    }),
  );
  title.textContent = healthy ? "Earlier notices" : "What wants attention";
  panel.classList.toggle("earlier", healthy);
  panel.hidden = list.childElementCount === 0;
}

function fill(table, columns, rows, names, adorn) {
  if (!table.tHead.rows.length) {
    const head = table.tHead.insertRow();
    for (const [name, title, , kind] of columns) {
      head.append(element("th", name, { scope: "col", class: kind ?? "", ...(title ? { title } : {}) }));
    }
  }
  const body = document.createElement("tbody");
  for (const each of rows) {
    const row = body.insertRow();
    for (const [, , text, kind] of columns) row.append(element("td", String(text(each, names)), { class: kind ?? "" }));
    adorn(each, row);
  }
  table.tBodies[0].replaceWith(body);
}
