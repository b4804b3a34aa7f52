"""Mistakes in what is done with whole epochs under a robust rule: whose word counts, what leads, and what waits.

A table and nothing else; what an entry is stands in `base`.
"""

from __future__ import annotations

from simulations.mistakes.base import (
    EPIDEMIC,
    EPOCHS,
    FIXED_POINT,
    JUDGING,
    RUMOURS,
    SPREADING,
    Mutation,
)

__all__ = ["MUTATIONS"]

_TAKEOVER = "tests/protocol/test_rumour_takeover.py::"
_NETWORK = "tests/simulations/test_epidemic_judged.py::"

MUTATIONS = (
    Mutation(
        "refused-and-looked-at",
        "who has signed what all refuse is looked at by a robust rule",
        JUDGING,
        "                epoch.weights[each.row] = 0.0\n",
        "",
    ),
    Mutation(
        "judged-after-the-snapshot",
        "an epoch is judged after the snapshot that is said to have it inside",
        JUDGING,
        "list(map(math.fsum, given)), leads)), ahead=True)",
        "list(map(math.fsum, given)), leads)))",
    ),
    Mutation(
        "a-voice-for-each-message",
        "who publishes more often has more of a say in a robust rule",
        JUDGING,
        "rows = {origin: row for row, origin in enumerate(sorted({rumour.origin for rumour, _ in rumours}))}",
        "rows = {rumour.origin: row for row, (rumour, _) in enumerate(rumours)}",
    ),
    Mutation(
        "leads-for-ever",
        "own increments lead for ever",
        SPREADING,
        "            self._judging.leads(epoch, self._terms(made.clock).compressor, made.payloads)\n",
        "            pass\n",
        _NETWORK + "test_peer_alone_is_the_bare_optimizer_and_has_no_lead_left",
    ),
    Mutation(
        "leads-by-nothing",
        "training goes back to what is shared, though its own increments are applied epochs later",
        FIXED_POINT,
        "fixed if self.lead is None else fixed + self.lead[span][where]",
        "fixed",
        "tests/algorithms/test_epidemic.py::test_own_increments_lead_until_their_epoch_is_settled",
    ),
    Mutation(
        "leads-another-state",
        "the lead over a state stays when another is taken over",
        FIXED_POINT,
        "            self.v[self.span(chunk)] = 0.0\n            self._no_lead(chunk)\n",
        "            self.v[self.span(chunk)] = 0.0\n",
        "tests/algorithms/test_epidemic.py::test_state_taken_over_while_training_ends_the_lead_unless_it_is_taken_back",
    ),
    Mutation(
        "weight-as-it-is-claimed",
        "who claims to be all moves by all, though few have published",
        EPIDEMIC,
        "robust.together(np.array(job.weights)[counted].tolist())",
        "min(1.0, math.fsum(np.array(job.weights)[counted]))",
    ),
    Mutation(
        "settles-without-its-payloads",
        "an epoch settles though what the giver of the state had of it has not come yet",
        EPOCHS,
        "max(least, min(oldest, waits))",
        "max(least, oldest)",
        _TAKEOVER + "test_what_the_giver_had_is_asked_for_and_its_epoch_waits_for_it",
    ),
    Mutation(
        "payloads-let-go",
        "payloads that will be judged are dropped once they have come",
        RUMOURS,
        "        if record is not None:\n            record.given = not self._config.gather\n",
        "        if record is not None:\n            record.given = True\n",
        _TAKEOVER + "test_payloads_are_kept_until_their_epoch_has_settled_and_then_as_there_is_room",
    ),
    Mutation(
        "no-room-and-forgotten",
        "what there was no room for is waited for where it was refused",
        RUMOURS,
        "            self._fetches.postponed(record.name, now, self._config.wait, self._config.patience)\n",
        "",
        _NETWORK + "test_who_takes_a_state_over_judges_what_is_not_in_it_yet",
    ),
    Mutation(
        "samples-with-the-lead",
        "what is sampled of the anchor, and compared with, has this peer's own lead in it",
        FIXED_POINT,
        "leads = self.lead is not None and self.lead[span].any()",
        "leads = False",
        "tests/algorithms/test_epidemic.py::test_sample_is_of_what_is_shared_and_so_is_what_it_is_compared_with",
    ),
    Mutation(
        "buffers-vouched-for",
        "who is near by its parameters is believed its buffers as well",
        EPIDEMIC,
        """parts.append(self._judged(job, "mean" if job.rule == "mean" else "trimmed", rows[:, trainable:]))""",
        "parts.append(self._judged(job, job.rule, rows[:, trainable:]))",
        "tests/algorithms/test_epidemic.py::test_who_is_near_by_its_parameters_is_not_believed_its_buffers",
    ),
    Mutation(
        "deaf-to-the-other",
        "the geometric median of two contributors is one of them",
        "gossipdp/algorithms/robust.py",
        "    if len(masses) == 2:  #",
        "    if len(masses) == 1:  #",
        "tests/algorithms/test_robust.py::test_geometric_median_of_two_is_neither_of_them_alone",
    ),
)
