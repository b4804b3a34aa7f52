// Asks the daemon once a second while the page is visible, and shows what it answers.
import { agreement, knowsLoss, losses, recordOf, stalls, traffic } from "./course.js";
import { recent, showContribution, showExchanges, showFigures, showMembers, showNotices } from "./lists.js";
import { Picture } from "./network.js";
import { Plot, joined } from "./plots.js";
import { printable, shortened, spoken } from "./text.js";

const EVERY = 1000; // milliseconds between two looks
const HISTORY_EVERY = 10; // looks between two requests for the history
const PLOT_EVERY = 5; // looks between two drawings of the plots
const PATIENCE = 8000; // milliseconds for an answer
const MOST = 6000; // records kept before all are asked for again
const LEGEND = 20; // letters of a name below a plot, at most

const at = (id) => document.getElementById(id);
const picture = new Picture(at("picture"), at("picture-told"), at("legend"));
const plots = {
  loss: new Plot(at("loss")),
  agreement: new Plot(at("agreement"), { second: "distance" }),
  traffic: new Plot(at("traffic"), { unit: "B/s" }),
  stall: new Plot(at("stall"), { unit: "%" }),
};
let records = [];
let bySamples = false;
let latest = null;
let answered = 0;
let looks = 0;

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (!answer.ok) throw new Error(`the daemon answers ${answer.status}`);
  return answer.json();
}

async function look() {
  try {
    latest = await ask("status.json");
    answered = Date.now();
    show(latest.status, recent(latest.members));
    if (looks % HISTORY_EVERY === 0) await extend();
    if (looks % PLOT_EVERY === 0) draw();
    looks += 1;
    at("silent").hidden = true;
  } catch (error) {
    const since = answered ? `, last ${spoken((Date.now() - answered) / 1000)} ago` : "";
    at("silent").textContent = `The daemon does not answer${since} (${error.message}). Does it run? See gossipdp status.`;
    at("silent").hidden = false;
  }
}

async function extend() {
  if (records.length > MOST) records = [];
  const since = records.length ? `?since=${records.at(-1).time}` : "";
  records.push(...(await ask(`history.json${since}`)));
  records.sort((a, b) => a.time - b.time); // a clock that was set back
}

function show(status, members) {
  const names = new Map(members.map((member) => [member.id, printable(member.name)]));
  const name = printable(status.name);
  document.title = `${status.verdict.state}: ${name}, ${printable(status.network)} - gossipdp`;
  at("network").textContent = printable(status.network);
  at("host").textContent = `seen from ${name}`;
  const [state, ...rest] = String(status.verdict.text).split(":");
  at("verdict").className = `verdict ${status.verdict.state}`;
  at("state").textContent = state;
  at("told").textContent = printable(rest.join(":").trim(), 400);
  showFigures(at("figures"), status);
  showNotices(at("notices-panel"), at("notices-title"), at("notices"), status);
  picture.draw(members, new Set(status.links));
  showMembers(at("members"), at("members-more"), members);
  showContribution(at("contribution"), members);
  showExchanges(at("exchanges"), status.recent_exchanges, names);
}

/** Draw the plots: the history, and the look of now as its end. */
function draw() {
  if (latest === null) return;
  const now = Date.now() / 1000;
  const kept = records.filter((record) => record.time < now);
  const all = [...kept, recordOf(latest.status, latest.members, now)];
  at("loss-told").hidden = knowsLoss(all);
  at("loss-drawn").hidden = !knowsLoss(all);
  const found = losses(all, latest.status.id.slice(0, 8), bySamples);
  const names = shortened(new Map(found.map(({ id, name }) => [id, name])), LEGEND);
  const own = found.findIndex(({ mine }) => mine);
  const lines = found.map(({ id, mine, evaluation }, at) => ({
    name: names.get(id), colour: evaluation && own >= 0 ? own : at, strong: mine, dotted: evaluation,
  }));
  plots.loss.show(joined(found.map(({ points }) => points)), lines, !bySamples);
  plots.agreement.show(agreement(all), [{ name: "ratio", strong: true }, { name: "distance" }]);
  plots.traffic.show(traffic(all), [{ name: "received" }, { name: "sent" }]);
  plots.stall.show(stalls(all), [{ name: "time lost" }]);
}

function choose(samples) {
  bySamples = samples;
  at("by-time").setAttribute("aria-pressed", String(!samples));
  at("by-samples").setAttribute("aria-pressed", String(samples));
  draw();
}

async function watch() {
  if (!document.hidden) await look();
  setTimeout(watch, EVERY);
}

at("by-time").addEventListener("click", () => choose(false));
at("by-samples").addEventListener("click", () => choose(true));
watch();
