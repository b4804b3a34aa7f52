// The course of the run, from the records of its history, as columns for the plots.
import { isKnown } from "./text.js";

const SERIES = 12; // members with a line of their own
const POINTS = 500; // points of a line against samples, at most

/** The record of now, made from the answers to `status` and `members`. */
export function recordOf(status, members, time) {
  return {
    time,
    samples: status.samples,
    loss: status.loss,
    eval_loss: status.eval_loss,
    distance: status.consensus_distance,
    ratio: status.consensus_ratio,
    stall: status.stall_seconds,
    sent: status.sent_bytes,
    received: status.received_bytes,
    members: members.map((member) => [
      member.id.slice(0, 8), member.name, member.steps, member.round, member.loss, member.samples,
    ]),
  };
}

/** Whether any peer has reported a loss. */
export function knowsLoss(records) {
  return records.some(
    (record) => isKnown(record.loss) || isKnown(record.eval_loss) || record.members.some((member) => isKnown(member[4])),
  );
}

/** Training losses of members, this host first, and its evaluation, against time or each against its own samples. */
export function losses(records, me, bySamples) {
  const names = new Map();
  for (const record of records) for (const [id, name] of record.members) names.set(id, name);
  const ids = [...names.keys()].sort((a, b) => Number(b === me) - Number(a === me)).slice(0, SERIES);
  const told = (id, lossOf) => curve(records, bySamples, (record) => {
    const found = record.members.find((member) => member[0] === id);
    return { samples: found?.[5], loss: lossOf(record, found) };
  });
  const found = ids.map((id) => ({
    id,
    name: names.get(id),
    mine: id === me,
    points: told(id, (record, member) => member?.[4] ?? (id === me ? record.loss : null)),
  }));
  const evaluation = told(me, (record) => record.eval_loss);
  if (evaluation.length) found.push({ id: "evaluation", name: "evaluation here", evaluation: true, points: evaluation });
  return found;
}

/** Points [x, loss] where the loss is known and x has grown: a member's samples stand between two of its reports. */
function curve(records, bySamples, told) {
  const points = [];
  for (const record of records) {
    const { samples, loss } = told(record);
    const x = bySamples ? samples : record.time;
    if (isKnown(loss) && isKnown(x) && !(x <= points.at(-1)?.[0])) points.push([x, loss]);
  }
  return bySamples ? thinned(points) : points;
}

/** Some of the points, the last one included. Curves against samples share no x, so each point has a row of its own. */
function thinned(points) {
  const step = Math.ceil(points.length / POINTS);
  return points.filter((_, at) => (points.length - 1 - at) % step === 0);
}

export function agreement(records) {
  return [times(records), records.map((record) => record.ratio ?? null), records.map((record) => record.distance ?? null)];
}

export function traffic(records) {
  return [times(records), rates(records, "received"), rates(records, "sent")];
}

/** Percent of the time between two records that training spent in gossipdp. */
export function stalls(records) {
  return [times(records), rates(records, "stall").map((rate) => (rate === null ? null : Math.min(100, 100 * rate)))];
}

function times(records) {
  return records.map((record) => record.time);
}

/** A total's growth per second since the record before. A total that fell was started anew, at 0. */
function rates(records, key) {
  return records.map((record, at) => {
    if (at === 0) return null;
    const before = records[at - 1];
    const seconds = record.time - before.time;
    const grew = record[key] >= before[key] ? record[key] - before[key] : record[key];
    return seconds > 0 ? grew / seconds : null;
  });
}
