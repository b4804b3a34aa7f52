// The course of the run, from the records of its history, as columns for the plots.

const SERIES = 12; // members with a line of their own

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
    members: members.map((member) => [member.id.slice(0, 8), member.name, member.steps, member.round, member.loss]),
  };
}

/** Columns against time, or against this host's samples. Counts that start again go on from where they were. */
export function losses(records, me, bySamples) {
  const names = new Map();
  for (const record of records) for (const [id, name] of record.members) names.set(id, name);
  const ids = [...names.keys()].sort((a, b) => Number(b === me) - Number(a === me)).slice(0, SERIES);
  const samples = grown(records, "samples");
  const kept = records.map((record, at) => at).filter((at) => !bySamples || at === 0 || samples[at] > samples[at - 1]);
  const x = kept.map((at) => (bySamples ? samples[at] : records[at].time));
  const columns = ids.map((id) =>
    kept.map((at) => {
      const found = records[at].members.find((member) => member[0] === id);
      return (found && found[4]) ?? (id === me ? records[at].loss : null) ?? null;
    }),
  );
  const evaluation = kept.map((at) => records[at].eval_loss ?? null);
  const evaluated = evaluation.some((value) => value !== null);
  return {
    data: [x, ...columns, ...(evaluated ? [evaluation] : [])],
    names: [...ids.map((id) => names.get(id)), ...(evaluated ? ["evaluation here"] : [])],
    mine: ids.indexOf(me),
    evaluated,
  };
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

function grown(records, key) {
  let base = 0;
  let last = 0;
  return records.map((record) => {
    if (record[key] < last) base += last;
    last = record[key];
    return base + last;
  });
}
