"""Mistakes in how increments reach everybody: which rumours count, on which epochs peers agree, how rumours spread.

A table and nothing else; what an entry is stands in `base`.
"""

from __future__ import annotations

from simulations.mistakes.base import (
    CREDIT,
    EPOCH_TALK,
    EPOCHS,
    RUMOUR_FETCHING,
    RUMOUR_HEADER,
    RUMOUR_LINKS,
    RUMOUR_STORE,
    RUMOUR_SUMMARY,
    RUMOUR_TREES,
    RUMOURS,
    SPREADING,
    Mutation,
)

__all__ = ["MUTATIONS"]

MUTATIONS = (
    # -- which rumours count
    Mutation(
        "rumour-again",
        "a rumour that was handed out is taken again once its payload was dropped",
        RUMOURS,
        "if record is not None or kept.holds(name):",
        "if record is not None:",
    ),
    Mutation(
        "part-again",
        "a part that is here is taken again: the last one hands the rumour out once more",
        RUMOURS,
        "if record is None or (part < len(record.wanted) and record.have >> part & 1):",
        "if record is None:",
    ),
    Mutation(
        "rumour-unsigned",
        "a rumour is believed without its origin's signature",
        RUMOURS,
        "        if not self._verify(rumour.origin, name, rumour.signature):\n"
        '            return self._deny(name, source, "signature", now)\n',
        "",
    ),
    Mutation(
        "part-by-size",
        "a part is believed if it is as long as it should be",
        RUMOURS,
        "record.wanted[part] != (size, part_hash(payload))",
        "record.wanted[part].size != size",
    ),
    Mutation(
        "epoch-of-choice",
        "an origin may put a rumour into another epoch than that of its clock",
        RUMOURS,
        "        if rumour.clock // self._config.span != rumour.epoch:\n"
        '            return self._deny(name, source, "terms", now)\n',
        "",
    ),
    Mutation(
        "too-long-for-the-model",
        "an increment may be as long as that of the largest model, whatever the model",
        SPREADING,
        "        self._rumours.largest = increments.largest(model.chunks, model.chunk_parameters)\n",
        "",
        "tests/protocol/test_spreading_units.py",
    ),
    Mutation(
        "joiner-applies-again",
        "a joiner applies what its state holds already",
        RUMOURS,
        "for rumour in taken.inside:",
        "for rumour in taken.inside[:0]:",
        "tests/protocol/test_rumour_takeover.py",
    ),
    Mutation(
        "inside-thrown-away",
        "who takes a state over drops the payloads of what is inside it, and cannot hand them on",
        RUMOURS,
        "            if name in inside and (record.complete or gather):\n                record.given = not gather\n"
        "            elif name in inside or not",
        "            if name in inside or not",
        "tests/protocol/test_rumour_takeover.py",
    ),
    Mutation(
        "equivocation-untold",
        "who finds a proof that an origin has signed two of one number keeps it to itself",
        RUMOURS,
        "        for link in self._links.near():\n            self._trees.show(verdict.proof, link.peer)\n",
        "",
        "tests/protocol/test_rumour_rules.py",
    ),
    Mutation(
        "void-served",
        "payloads of an origin that is void are kept, and handed on",
        RUMOURS,
        "            if record.rumour.origin == origin and record.rumour.epoch == kept.epoch:\n"
        "                self._trees.forget(record.name)\n",
        "            pass\n",
        "tests/protocol/test_rumour_rules.py",
    ),
    Mutation(
        "void-not-taken-back",
        "what an origin had published before it was found void goes on to count",
        EPOCHS,
        "if self.inside.pop(each[0], None) is not None)",
        "if each[0] in self.inside)",
    ),
    Mutation(
        "first-seen-counts",
        "of two rumours of one number the first seen counts",
        EPOCHS,
        "            return self._void(origin, (known[1], rumour))\n",
        '            return Verdict("known")\n',
        "tests/protocol/test_rumour_epochs.py::test_two_of_one_number_are_proof_against_their_origin_whichever_came_first",
    ),
    # -- epochs
    Mutation(
        "beyond-the-cap",
        "a rumour of an epoch that has settled is taken",
        EPOCHS,
        "return self.first <= epoch <= self.current + AHEAD",
        "return epoch <= self.current + AHEAD",
    ),
    Mutation(
        "counted-before-whole",
        "an epoch counts a rumour of which only the header has come",
        EPOCHS,
        "        origin.signed[key] = name, rumour\n",
        "        origin.signed[key] = name, rumour\n        self.inside[name], self._sorted = rumour, None\n",
    ),
    Mutation(
        "order-of-coming",
        "the digest of an epoch follows the order in which its rumours came",
        EPOCHS,
        "self._sorted = sorted([*self.inside, *self._voids])",
        "self._sorted = [*self.inside, *self._voids]",
    ),
    Mutation(
        "settled-alone",
        "a settled epoch's digest is of that epoch alone: an older difference is forgotten",
        EPOCHS,
        "self._chain = _chained(self._chain, each.epoch, each.digest)",
        "self._chain = _chained(EMPTY, each.epoch, each.digest)",
    ),
    Mutation(
        "both-give-way",
        "of two camps as large each gives way to the other",
        EPOCHS,
        "key=lambda each: (len(camps[each]), [-byte for byte in min(camps[each])])",
        "key=lambda each: (len(camps[each]), each != known.digest)",
    ),
    Mutation(
        "closed-early",
        "an epoch closes, and weighs what comes, an epoch early",
        EPOCHS,
        "closed = range(max(before - GRACE, oldest - KEPT, self.first), self.current - GRACE)",
        "closed = range(max(before - GRACE + 1, oldest - KEPT, self.first), self.current - GRACE + 1)",
    ),
    Mutation(
        "digest-unsigned",
        "a word on an epoch is believed whoever signed it",
        EPOCH_TALK,
        "        if not self._verify(source, digest_name(message, self._run), bytes(buffers[0])):\n"
        "            return False\n",
        "",
    ),
    Mutation(
        "votes-of-another-founding",
        "the word of who goes back to another founding is counted",
        EPOCH_TALK,
        "                message.base == self._epochs.base\n                and mark.stage",
        "                mark.stage",
    ),
    Mutation(
        "proofs-unlisted",
        "who compares epochs does not list its proofs",
        EPOCH_TALK,
        "if self._serves(name) or here[epoch].proof(name)]",
        "if self._serves(name)]",
    ),
    Mutation(
        "summary-unsigned",
        "what is said to be inside a state is believed without its origins' signatures",
        RUMOUR_SUMMARY,
        "    if not all(verify(rumour.origin, name, rumour.signature) for name, rumour in named.items()):\n"
        "        return None\n",
        "",
    ),
    Mutation(
        "weight-unsigned",
        "the share of an increment is no part of what its origin signs",
        RUMOUR_HEADER,
        "        rumour.weight,\n",
        "        0.0,\n",
    ),
    # -- how they spread
    Mutation(
        "never-grafted",
        "what was announced and does not come is never grafted",
        RUMOUR_FETCHING,
        "Fetch(name, epoch, peer, now, now + wait)",
        'Fetch(name, epoch, peer, now, float("inf"))',
    ),
    Mutation(
        "same-source-again",
        "a source that is silent is asked again and again, and nobody else",
        RUMOUR_FETCHING,
        "        asked = fetch.holders.pop(fetch.source, None)\n        if asked is not None:\n"
        "            fetch.holders[fetch.source] = asked\n",
        "",
    ),
    Mutation(
        "last-link-pruned",
        "a rumour that nobody sends any more is pruned where it is offered",
        RUMOURS,
        'if fetch.source in (b"", source):',
        "if fetch.source == source:",
    ),
    Mutation(
        "prune-unheeded",
        "a link that was pruned stays eager",
        RUMOUR_TREES,
        "                if record is not None:\n                    link.mark(record.rumour.origin, False)\n",
        "",
    ),
    Mutation(
        "graft-once",
        "a graft brings what was asked for, and leaves the link lazy",
        RUMOUR_LINKS,
        "        self.stop(record.name)\n        self.mark(record.rumour.origin, True)\n",
        "        self.stop(record.name)\n",
    ),
    Mutation(
        "sent-back",
        "a rumour is pushed back to whom it came from",
        RUMOUR_TREES,
        "            link.mark(record.rumour.origin, False)\n        self._outputs.send(source, Got(record.name, 0))\n",
        "            pass\n        self._outputs.send(source, Got(record.name, 0))\n",
    ),
    Mutation(
        "dropped-unseen",
        "a payload is dropped for another before the application has it",
        RUMOUR_STORE,
        "if record.complete and record.given]",
        "if record.complete]",
    ),
    Mutation(
        "window-for-ever",
        "a link that loses is sent as much as before",
        CREDIT,
        "        self._window = max(2, self._window // 2)\n",
        "",
    ),
    Mutation(
        "founds-on-what-was-told",
        "what is inside the state of a founding is handed out again",
        RUMOURS,
        "self._clock // self._config.span + 1 if self._clock else 0, {}, base)",
        "max(0, self._epochs.closes(self._clock)), {}, base)",
    ),
    Mutation(
        "digests-in-any-order",
        "a digest that comes late takes back what was said since",
        EPOCH_TALK,
        "if message.number <= self._numbers.get(source, -1):",
        "if False:",
    ),
)
