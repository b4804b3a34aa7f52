"""Mistakes in what `epidemic` does with increments: shares, turns, the residual, and sums that are exact in any order.

A table and nothing else; what an entry is stands in `base`.
"""

from __future__ import annotations

from simulations.mistakes.base import (
    APPLYING,
    EPIDEMIC,
    EPOCHS,
    FIXED_POINT,
    RUMOUR_SUMMARY,
    SHARES,
    SPREADING,
    TURNS,
    Mutation,
)

__all__ = ["MUTATIONS"]

MUTATIONS = (
    # -- increments and whose turn it is
    Mutation(
        "round-counts-as-epoch",
        "a share is of the samples of a round, whatever its length",
        SHARES,
        "samples * self._span / max(1, steps)",
        "float(samples)",
    ),
    Mutation(
        "share-of-the-dead",
        "a share is set aside for members that are dead",
        SPREADING,
        "reports = map(self._progress.of, self._live)",
        "reports = map(self._progress.of, self._membership.members.keys() - {self._membership.me.id})",
    ),
    Mutation(
        "share-of-the-idle",
        "a share is set aside for members that never train",
        SPREADING,
        "report is not None and report.steps > 0",
        "report is not None",
        "tests/simulations/test_epidemic_spreading.py::test_no_share_is_set_aside_for_one_that_never_trains",
    ),
    Mutation(
        "samples-twice",
        "samples of a round are counted in the next again",
        SPREADING,
        "self._samples, self._published_at = 0, self._clock\n",
        "self._published_at = self._clock\n",
        "tests/simulations/test_epidemic_spreading.py::test_no_share_is_set_aside_for_the_dead",
    ),
    Mutation(
        "rounds-first",
        "a round goes before increments that wait",
        TURNS,
        "self.busy = (self._ahead or self._others).popleft()()",
        "self.busy = (self._others or self._ahead).popleft()()",
    ),
    Mutation(
        "turns-at-once",
        "what is asked for in its turn begins beside what is under way",
        TURNS,
        "while not self.busy and (self._ahead or self._others):",
        "while self._ahead or self._others:",
    ),
    Mutation(
        "half-an-increment",
        "an increment that is sound at its end is applied, whatever it was before",
        APPLYING,
        "            if not result.sound or (last and made.length != made.rumour.length):\n",
        "            if last and (not result.sound or made.length != made.rumour.length):\n",
    ),
    Mutation(
        "never-undone",
        "what a proven liar has published is applied again instead of taken back",
        APPLYING,
        "rumour.weight, bound, made.back))",
        "rumour.weight, bound, False))",
    ),
    Mutation(
        "length-believed",
        "how far an increment moves is taken from its origin's word",
        APPLYING,
        "(last and made.length != made.rumour.length)",
        "(last and made.length > made.rumour.length)",
    ),
    Mutation(
        "never-cut",
        "an increment moves the anchor as far as it says, however far",
        EPOCHS,
        "LONGER: Final = 4.0",
        "LONGER: Final = 4e9",
        "tests/simulations/test_epidemic_peers.py::test_a_host_that_diverges_moves_nobody_much_and_all_cut_it_alike",
    ),
    Mutation(
        "cut-by-others-only",
        "a peer applies its own increment whole, and all others cut it",
        SPREADING,
        "            self._applying.cut(told[1], parts)\n",
        "            pass\n",
        "tests/simulations/test_epidemic_peers.py::test_a_host_that_diverges_moves_nobody_much_and_all_cut_it_alike",
    ),
    Mutation(
        "usual-forgotten",
        "whoever takes a state over does not learn how long increments were",
        RUMOUR_SUMMARY,
        "return {each.epoch: Usual(each.length, each.age) for each in self.lengths}",
        "return {}",
        "tests/simulations/test_epidemic_peers.py::test_a_host_that_diverges_moves_nobody_much_and_all_cut_it_alike",
    ),
    Mutation(
        "liar-without-payload",
        "who cannot take back what a liar has published goes on as if it had",
        SPREADING,
        "                    if not all(parts for _, parts in received):\n"
        "                        self._astray = self._astray or tuple(self._live)\n",
        "",
        "tests/simulations/test_epidemic_peers.py::test_what_cannot_be_taken_back_any_more_is_fetched_anew",
    ),
    Mutation(
        "frozen-while-held",
        "a state that is about to be replaced is handed on",
        SPREADING,
        "if self._held or not begin():",
        "if not begin():",
        "tests/simulations/test_epidemic_spreading.py::test_a_state_that_is_about_to_be_replaced_is_not_handed_on",
    ),
    # -- the vectors
    Mutation(
        "left-out-for-ever",
        "the sender forgets what its compressor left out",
        EPIDEMIC,
        "        e -= sent\n",
        "        e[:] = 0.0\n",
        "tests/algorithms/test_epidemic.py::test_published_says_what_it_did",
    ),
    Mutation(
        "left-out-of-what-was-offered",
        "what was offered is taken out of the residual, and not what was sent",
        EPIDEMIC,
        "        e -= sent\n",
        "        e -= offered\n",
        "tests/algorithms/test_epidemic.py::test_published_says_what_it_did",
    ),
    Mutation(
        "own-exactly",
        "an origin applies what it had to say, and the others what its codes say",
        EPIDEMIC,
        "        self._last[chunk] = job.compressor, payload\n",
        "        self._last[chunk] = job.compressor, payload\n"
        "        increment = self._terms(chunk, offered, lr, weight)\n",
        "tests/algorithms/test_epidemic.py::test_sparseloco_is_what_comes_of_messages_without_delay",
    ),
    Mutation(
        "any-weight",
        "an increment may weigh more than all, or less than nothing",
        EPIDEMIC,
        "        if not (0.0 <= lr <= MOST_LR and 0.0 < weight <= 1.0):\n            return None\n",
        "        if not 0.0 <= lr <= MOST_LR:\n            return None\n",
        "tests/algorithms/test_epidemic.py::test_hostile_payload_moves_the_anchor_by_the_bound_at_the_most_and_never_raises",
    ),
    Mutation(
        "unbounded",
        "an increment moves the anchor as far as it says",
        EPIDEMIC,
        "terms = increment.bounded(bound)\n",
        "terms = increment.terms\n",
        "tests/algorithms/test_epidemic.py::test_hostile_payload_moves_the_anchor_by_the_bound_at_the_most_and_never_raises",
    ),
    Mutation(
        "order-matters",
        "an increment is added to what fp32 shows of the anchor: the order of application matters",
        FIXED_POINT,
        "self.fixed[self.span(chunk)][where] + terms)",
        "to_fixed(self.a[self.span(chunk)][where]) + terms)",
    ),
    Mutation(
        "saturates",
        "sums past the range of the fixed point stay at its end",
        FIXED_POINT,
        "self.fixed[self.span(chunk)][where] + terms)",
        "np.clip(self.fixed[self.span(chunk)][where] + terms.astype(float), -(2.0**62), 2.0**62).astype(np.int64))",
    ),
    Mutation(
        "overflow-in-conversion",
        "a value past the range wraps around on its way to fixed point",
        FIXED_POINT,
        "    np.clip(scaled, -most * SCALE, most * SCALE, out=scaled)\n",
        "",
    ),
    Mutation(
        "no-sign-bit",
        "a block of an exact state has no bit for the sign",
        FIXED_POINT,
        "np.frexp(bits)[1] // 8 + 1, 0)",
        "-(-np.frexp(bits)[1] // 8), 0)",
    ),
    Mutation(
        "norm-too-short",
        "the length of an increment is rounded down: what is too long passes",
        FIXED_POINT,
        "    sizes += (1 << shift) - 1\n",
        "",
    ),
    Mutation(
        "pending-drifts",
        "the training process is not told how an increment has moved the anchor",
        FIXED_POINT,
        "        pending[where] += values - a[where]\n",
        "",
    ),
    Mutation(
        "taken-back-in-part",
        "of a state that was followed in two pieces only the last is taken back",
        FIXED_POINT,
        "moved if before is None else before + moved",
        "moved",
    ),
)
