"""Tests the tests: breaks the code on purpose, one line at a time, and asks who notices.

    python -m simulations.mutations [--only NAME ...] [--jobs 2] [--list] [--write]

Each mutation is a plausible mistake, a replacement of text that stands exactly once in its file. It is applied to a
copy of the tree, and the stages of the campaign run against it, the simulator first, until one fails: that one has
caught it. A mutation that passes all of them has survived, and is a hole in the tests. `--write` puts the list into
simulations/README.md. Nothing here may touch the tree it runs from but for that list.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

__all__ = ["MUTATIONS", "STAGES", "Caught", "Mutation", "Stage", "apply"]

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("gossipdp", "peers", "simulations", "tests", "pyproject.toml")
TABLE_BEGINS, TABLE_ENDS = "<!-- mutations -->", "<!-- end of mutations -->"


@dataclass(frozen=True)
class Mutation:
    """`mistake` says in words what somebody might have got wrong."""

    name: str
    mistake: str
    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Stage:
    """One part of the campaign; `words` follow the interpreter's name. It is given `seconds`, then counts as failed:
    a protocol that never ends is broken too."""

    name: str
    words: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Caught:
    """`stage` is "" if all passed; `evidence` is the line that says what was seen."""

    mutation: Mutation
    stage: str
    evidence: str
    seconds: float


_NOT_AGAIN = "not seed_holds and not exhaustive and not mutation"
"""what other stages do, and the test that mutations fit, which a broken tree fails by being one"""
STAGES = (
    Stage("training", ("-m", "pytest", "-x", "-q", "tests/training/test_layout.py"), 120.0),
    Stage("properties", ("-m", "pytest", "-x", "-q", "tests/algorithms", "tests/codecs"), 600.0),
    Stage("units", ("-m", "pytest", "-x", "-q", "tests/protocol"), 600.0),
    Stage("seeds", ("-m", "simulations.cluster", "--seed", "1", "--count", "60", "--first-failure"), 900.0),
    Stage("exhaustive", ("-m", "simulations.exhaustive", "--cases", "brief", "--first-failure"), 600.0),
    Stage("scenarios", ("-m", "pytest", "-x", "-q", "tests/simulations", "-m", "not long", "-k", _NOT_AGAIN), 900.0),
)
"""The quick ones first: which of them is the first to see a mistake says nothing of the others."""

RESPONDER = "gossipdp/protocol/responder.py"
INITIATOR = "gossipdp/protocol/initiator.py"
AVERAGING = "gossipdp/protocol/averaging.py"
PAIRWISE = "gossipdp/algorithms/pairwise.py"
LEDGER = "gossipdp/algorithms/base.py"
MODULO = "gossipdp/codecs/modulo.py"
KERNELS = "gossipdp/codecs/kernels.py"
VIEW = "gossipdp/protocol/view.py"
MEMBERSHIP = "gossipdp/protocol/membership.py"
PROGRESS = "gossipdp/protocol/progress.py"
ROUNDS = "gossipdp/protocol/rounds.py"
PARTNERS = "gossipdp/protocol/partners.py"
TRANSFER = "gossipdp/protocol/transfer.py"
FLOW = "gossipdp/protocol/flow.py"
PLAUSIBILITY = "gossipdp/protocol/plausibility.py"
BLOCKS = "gossipdp/protocol/blocks.py"
OWNERS = "gossipdp/protocol/rendezvous.py"
SHARDING = "gossipdp/protocol/sharding.py"

MUTATIONS = (
    # -- exactly once in effect
    Mutation(
        "mixed-again",
        "the responder drops its de-duplication: a chunk that was mixed may be opened again",
        RESPONDER,
        "if number in self._open or number in self._mixed or number in self._void:",
        "if number in self._open or number in self._void:",
    ),
    Mutation(
        "void-reopened",
        "a chunk declared void may be opened again",
        RESPONDER,
        "if number in self._open or number in self._mixed or number in self._void:",
        "if number in self._open or number in self._mixed:",
    ),
    Mutation(
        "turn-twice",
        "the responder takes a doubled turn for the next one",
        RESPONDER,
        "if chunk is None or chunk.working or turn != chunk.turn + 1:",
        "if chunk is None or turn > chunk.turn + 1:",
    ),
    Mutation(
        "log-forgets-acks",
        "the log answers a question about a mixed chunk with VOID",
        RESPONDER,
        "self._send(mixed.message, mixed.buffers)",
        "self._send(Void(self.terms.exchange, number))",
    ),
    Mutation(
        "closing-leaves-chunks",
        "a responder that closes forgets to make its idle chunks void",
        RESPONDER,
        "        self._make_void(idle)\n        if reason:",
        "        if reason:",
    ),
    Mutation(
        "ack-asked-for-never",
        "an initiator never asks again for what was lost",
        INITIATOR,
        "chunk.ask_at = now + pause * min(8, 2**chunk.asked)",
        "chunk.ask_at = math.inf",
    ),
    Mutation(
        "doubt-dropped",
        "an initiator that lost its partner drops the chunks in doubt",
        INITIATOR,
        "if not (chunk.doubtful or chunk.mixing)]",
        "if not chunk.mixing]",
    ),
    Mutation(
        "doubt-not-counted",
        "chunks in doubt are given up without being counted",
        INITIATOR,
        "        if doubts:\n            self._outputs.emit(ChunksInDoubt(self.terms.partner, doubts))",
        "        del doubts",
    ),
    Mutation(
        "ack-taken-twice",
        "the initiator takes a doubled ACK while the first is being mixed",
        INITIATOR,
        "if chunk is None or chunk.working or turn != chunk.turn + 1:",
        "if chunk is None or turn != chunk.turn + 1:",
    ),
    Mutation(
        "abort-in-doubt",
        "the initiator drops a chunk that waits for an ACK when its exchange ends early",
        INITIATOR,
        "            self._exhausted, self._result = True, result\n",
        "            self._exhausted, self._result = True, result\n            self._drop(list(self._open))\n",
    ),
    Mutation(
        "old-offer-accepted",
        "a doubled offer that comes late begins its exchange anew",
        AVERAGING,
        "        if offer.exchange <= self._latest.get(source, 0):\n            return\n",
        "",
    ),
    Mutation(
        "two-at-a-time",
        "a busy peer accepts a second exchange",
        AVERAGING,
        "        if self._active is not None or (",
        "        if (",
    ),
    Mutation(
        "crossing-both-yield",
        "of two crossing offers neither gives way",
        PARTNERS,
        "(self.offered.partner == source and source < me)",
        "False",
    ),
    Mutation(
        "new-life-unnoticed",
        "a partner's new incarnation does not end the doubts of the old one",
        AVERAGING,
        "if member.incarnation > side.terms.incarnation or (over and isinstance(side, Initiator)):",
        "if over and isinstance(side, Initiator):",
    ),
    Mutation(
        "unknown-settled",
        "an answer that the exchange is unknown is taken for a settlement",
        INITIATOR,
        '        if reason == "unknown":\n            self.give_up(now)\n        elif',
        "        if",
    ),
    Mutation(
        "other-model-accepted",
        "an offer with another schema is accepted",
        AVERAGING,
        '        if offer.schema != self.model.schema.digest:\n            return "schema"\n',
        "",
    ),
    # -- the mixing
    Mutation(
        "verdict-ignored",
        "a chunk is applied before the verdict on its blocks",
        MODULO,
        "self.complete = self.escalated == 0",
        "self.complete = True",
    ),
    Mutation(
        "tie-to-both",
        "antisymmetry is broken on ties: each side rounds half the wheel its own way",
        MODULO,
        "scale = (self._step if self._lower else -self._step).astype(np.float32)",
        "scale = (self._step if self._lower else -self._step * (1 + 1e-3)).astype(np.float32)",
    ),
    Mutation(
        "own-random-stream",
        "each side rounds with a stream of its own",
        PAIRWISE,
        'name = b"%s%d,%d" % (key.initiator, key.exchange, key.chunk)',
        'name = b"%s%d,%d,%d" % (key.initiator, key.exchange, key.chunk, lower)',
    ),
    Mutation(
        "escalation-rounds-anew",
        "an escalation rounds anew instead of sending higher bits of the same u",
        MODULO,
        "kernels.recompute(self._copy, self._scale, failing, *self._key, self._u)",
        "kernels.recompute(self._copy, self._scale, failing, *_key(self.escalated), self._u)",
    ),
    Mutation(
        "checks-not-looked-at",
        "the linear check of a block is not looked at",
        KERNELS,
        "failed[block] = np.uint8(np.uint16(check) != wanted)",
        "failed[block] = np.uint8(0)",
    ),
    Mutation(
        "range-without-steps",
        "the predicted range leaves out the peer's own outer steps",
        PAIRWISE,
        "predicted = self.range[blocks] + moved",
        "predicted = self.range[blocks]",
    ),
    Mutation(
        "clip-off",
        "nothing is clipped",
        PAIRWISE,
        "    norm = math.sqrt(norm2)\n    return 1.0 if norm <= bound else bound / norm",
        "    return 1.0",
    ),
    Mutation(
        "share-not-shared",
        "the initiator mixes all of a chunk that the responder clipped",
        PAIRWISE,
        "return self._mix(job.key, opened, job.share, norm2, job)",
        "return self._mix(job.key, opened, 1.0, norm2, job)",
    ),
    Mutation(
        "bound-of-today",
        "an ACK is measured by a bound learned after the partner was told another",
        PAIRWISE,
        "if job.share > _share(opened.told, norm2) * SHARE_TOLERANCE:",
        "if job.share > _share(self._bound(job.key.chunk), norm2) * SHARE_TOLERANCE:",
    ),
    Mutation(
        "nan-mixed",
        "a difference that is not finite is mixed",
        PAIRWISE,
        '        if not math.isfinite(norm2):\n            return self._refuse(key, "nan")\n',
        "",
    ),
    Mutation(
        "nan-submitted",
        "a snapshot with NaN is stepped on",
        LEDGER,
        "        return _finite(self.x[self.span(chunk)])",
        "        return True",
    ),
    # -- the ledger
    Mutation(
        "momentum-sees-mixing",
        "momentum is pulled with the mixing instead of against it",
        PAIRWISE,
        "momentum, job.pull)",
        "momentum, -job.pull)",
    ),
    Mutation(
        "d-counted-twice",
        "the correction of an outer step is a_new - a_old, which counts D twice",
        LEDGER,
        "            np.multiply(d, np.float32(1.0) - alpha, out=c)\n",
        "            np.multiply(d, -alpha, out=c)\n",
    ),
    Mutation(
        "sealed-slot-forgotten",
        "an outer step forgets the slot that is out",
        LEDGER,
        "for number in {self._sealed, self._open}:",
        "for number in {self._open}:",
    ),
    Mutation(
        "applied-slot-counted",
        "an outer step counts a slot the snapshot has already",
        LEDGER,
        "if number > applied and chunk",
        "if chunk",
    ),
    Mutation(
        "slot-not-zeroed",
        "a released slot keeps its numbers",
        LEDGER,
        "            buffer[self.span(chunk)] = 0.0\n",
        "            pass\n",
    ),
    Mutation(
        "attach-keeps-pending",
        "a new session starts from the anchor and gets its corrections as well",
        LEDGER,
        "                slot[span] = 0.0\n",
        "                pass\n",
    ),
    Mutation(
        "two-slots-out",
        "the open slot is sealed while the other has not been released",
        LEDGER,
        "if self._slots is None or not dirty or self._dirty[(self._open + 1) % 2]:",
        "if self._slots is None or not dirty:",
    ),
    Mutation(
        "buffers-get-momentum",
        "running statistics take the outer step of parameters",
        LEDGER,
        "split = min(max(self.trainable - span.start, 0), span.stop - span.start)",
        "split = span.stop - span.start",
    ),
    Mutation(
        "residual-forgotten",
        "the residual of bf16 parameters is forgotten",
        "gossipdp/training/layout.py",
        "                if residual is not None:\n                    values = values.float()",
        "                if False:\n                    values = values.float()",
    ),
    # -- rounds and progress
    Mutation(
        "released-in-a-round",
        "a slot is released in the middle of a round that has counted it",
        ROUNDS,
        "if self._releasable and self._phase is _Phase.IDLE:",
        "if self._releasable:",
    ),
    Mutation(
        "old-session-submits",
        "a snapshot of an earlier session is used",
        ROUNDS,
        "if not self.open or session != self.session or self._phase is not _Phase.IDLE:",
        "if not self.open or self._phase is not _Phase.IDLE:",
    ),
    Mutation(
        "progress-overwritten",
        "a late report on a peer's progress overwrites a later one",
        PROGRESS,
        "max(known.clock, report.clock)",
        "report.clock",
    ),
    Mutation(
        "progress-from-zero",
        "a restarted peer forgets what the others remember of it",
        PROGRESS,
        "                self._merge_mine(report)\n                continue\n",
        "                continue\n",
    ),
    # -- membership
    Mutation(
        "stale-incarnation",
        "an older incarnation is believed",
        VIEW,
        "return (new.incarnation, new.refutation, new.state) > (old.incarnation, old.refutation, old.state)",
        "return (new.refutation, new.state) > (old.refutation, old.state)",
    ),
    Mutation(
        "old-gossip-resurrects",
        "alive wins over failed at the same incarnation",
        VIEW,
        "return (new.incarnation, new.refutation, new.state) > (old.incarnation, old.refutation, old.state)",
        "return (new.incarnation, new.refutation, -new.state) > (old.incarnation, old.refutation, -old.state)",
    ),
    Mutation(
        "suspicion-for-ever",
        "a suspicion never expires",
        VIEW,
        "        return [peer for peer in self.suspected if now >= self._deadline(peer)]",
        "        return []",
    ),
    Mutation(
        "never-dialled-again",
        "a failed member is not dialled again",
        MEMBERSHIP,
        "        lost = list(self._view.lost)\n",
        "        lost: list[bytes] = []\n",
    ),
    Mutation(
        "never-refutes",
        "a member does not refute what is said of it",
        MEMBERSHIP,
        "        elif overrides(record, me) and me.state != State.LEFT:\n",
        "        elif False:\n",
    ),
    Mutation(
        "dials-once",
        "seeds are dialled once only",
        MEMBERSHIP,
        "        self._dial_at = now + wait * (0.75 + 0.25 * self._random.random())",
        "        self._dial_at = None",
    ),
    # -- state transfer
    Mutation(
        "hash-not-checked",
        "a joiner takes a chunk whose hash is wrong",
        LEDGER,
        "if memoryview(payload).nbytes != 2 * (span.stop - span.start) or state_hash(payload) != digest:",
        "if memoryview(payload).nbytes != 2 * (span.stop - span.start):",
    ),
    Mutation(
        "chunk-asked-once",
        "a joiner does not ask again for a chunk that was lost",
        TRANSFER,
        "            again = self._flow.repeat(now)\n",
        "            again = None\n",
    ),
    Mutation(
        "overtaken-not-asked",
        "a joiner does not see that a chunk was lost with an earlier connection",
        FLOW,
        "            del self._asked[earlier]\n",
        "            pass\n",
    ),
    Mutation(
        "patience-not-learnt",
        "a joiner on a slow link asks again and again for what is on its way",
        FLOW,
        "        self._usual = now - self._first.pop(chunk)\n",
        "        self._first.pop(chunk)\n",
    ),
    Mutation(
        "witness-not-asked",
        "whatever a source gives is taken, whoever else is there",
        PLAUSIBILITY,
        "        others = [peer for peer in members if peer != source]\n",
        "        others: list[bytes] = []\n",
    ),
    Mutation(
        "denial-ignored",
        "a state that a witness denies is taken",
        PLAUSIBILITY,
        "            if part.chunks and part.denied and not part.vouched:\n",
        "            if False:\n",
    ),
    Mutation(
        "source-trusted",
        "a manifest's signature is not verified",
        TRANSFER,
        "            and self._verify(self.source, _signed(manifest, schema_bytes, hashes), signature)\n",
        "",
    ),
    Mutation(
        "source-never-given-up",
        "a joiner waits for ever for a source that has fallen silent",
        TRANSFER,
        "        elif self._flow.silent(now):\n",
        "        elif False:\n",
    ),
    # -- data: every sample once
    Mutation(
        "finished-forgotten",
        "what others have finished takes the place of what is known, instead of joining it",
        BLOCKS,
        "                self.finished[place] |= blocks\n",
        "                self.finished[place] = blocks\n",
    ),
    Mutation(
        "own-block-again",
        "a peer takes a block that it has open already",
        BLOCKS,
        "taken = self.finished[epoch - self.epoch] | self._held(epoch)",
        "taken = self.finished[epoch - self.epoch]",
    ),
    Mutation(
        "heir-unaware",
        "the blocks of a member that leaves pass to nobody's set",
        OWNERS,
        "            self._sets[heir] |= 1 << block\n",
        "            self._sets[heir] |= 0\n",
    ),
    Mutation(
        "old-life-speaks",
        "a reader's words are ordered by their number alone, whatever life they are of",
        SHARDING,
        "(reader.incarnation, reader.sequence) <= (known.incarnation, known.sequence)",
        "reader.sequence <= known.sequence",
    ),
    Mutation(
        "lease-for-ever",
        "a block that is never finished is never given up",
        SHARDING,
        "if now > since + patience]",
        "if now < since]",
    ),
    Mutation(
        "finish-untold",
        "a block is finished, and nobody is told",
        SHARDING,
        "            blocks[lease.epoch - data.epoch] = 1 << lease.block\n",
        "            blocks[lease.epoch - data.epoch] = 0\n",
    ),
)


def apply(mutation: Mutation, tree: Path) -> str:
    """Break `tree`; returns the file's text as it was.

    Raises:
        ValueError: the text to replace does not stand there exactly once: the code has moved on, and so must this.
    """
    path = tree / mutation.path
    text = path.read_text()
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(f"{mutation.name}: its text stands {found} times in {mutation.path}")
    path.write_text(text.replace(mutation.old, mutation.new))
    return text


def copy_of_tree(where: Path) -> Path:
    """What the campaign needs, with the compiled kernels, whose cache goes by the files' times."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, where / name)
        else:
            shutil.copy2(source, where / name)
    return where


def judge(mutation: Mutation, tree: Path, stages: Sequence[Stage]) -> Caught:
    begun = time.monotonic()
    path = tree / mutation.path
    times = path.stat()
    before = apply(mutation, tree)
    try:
        for stage in stages:
            evidence = _run(stage, tree)
            if evidence is not None:
                return Caught(mutation, stage.name, evidence, time.monotonic() - begun)
        return Caught(mutation, "", "survived", time.monotonic() - begun)
    finally:
        path.write_text(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _run(stage: Stage, tree: Path) -> str | None:
    """What was seen if the stage failed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *stage.words],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=stage.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {stage.seconds:g} s"
    return None if done.returncode == 0 else _evidence(done.stdout + done.stderr)


def _evidence(output: str) -> str:
    """The one line that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for mark in ("FAILED:", "FAILED", "AssertionError", "Error"):
        for line in lines:
            if mark in line:
                return line[:160]
    return lines[-1][:160] if lines else "no output"


def campaign(mutations: Sequence[Mutation], stages: Sequence[Stage], jobs: int) -> list[Caught]:
    """Judge all, `jobs` at a time, each in a tree of its own.

    Raises:
        SystemExit: the unbroken tree fails already, and would seem to catch everything.
    """
    with tempfile.TemporaryDirectory(prefix="mutations-") as place:
        trees: SimpleQueue[Path] = SimpleQueue()
        copies = [copy_of_tree(Path(place) / str(number)) for number in range(jobs)]
        with ThreadPoolExecutor(jobs) as pool:
            for stage, evidence in zip(stages, pool.map(lambda stage: _run(stage, copies[0]), stages), strict=True):
                if evidence is not None:
                    raise SystemExit(f"the unbroken tree fails in {stage.name}: {evidence}")
        for copy in copies:
            trees.put(copy)

        def one(mutation: Mutation) -> Caught:
            tree = trees.get()
            try:
                caught = judge(mutation, tree, stages)
            finally:
                trees.put(tree)
            print(f"{caught.seconds:6.1f} s  {mutation.name:24} {caught.stage or 'SURVIVED':12} {caught.evidence}")
            sys.stdout.flush()
            return caught

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutations))


def table(results: Sequence[Caught]) -> str:
    rows = ["| mutation | the mistake | caught by | as |", "|---|---|---|---|"]
    for caught in results:
        evidence = caught.evidence.replace("|", "\\|")
        rows.append(f"| {caught.mutation.name} | {caught.mutation.mistake} | {caught.stage} | `{evidence}` |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="break the code on purpose, one line at a time, and see who notices")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutations")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="say what would be tried")
    parser.add_argument("--write", action="store_true", help="put the list into simulations/README.md")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if not options.only or mutation.name in options.only]
    if options.list:
        for mutation in chosen:
            print(f"{mutation.name:24} {mutation.mistake}")
        return 0
    results = campaign(chosen, STAGES, options.jobs)
    survivors = [caught for caught in results if not caught.stage]
    print(f"{len(results) - len(survivors)} of {len(results)} caught")
    if options.write:
        readme = ROOT / "simulations" / "README.md"
        text = readme.read_text()
        head, rest = text.split(TABLE_BEGINS)
        readme.write_text(f"{head}{TABLE_BEGINS}\n{table(results)}\n{TABLE_ENDS}{rest.split(TABLE_ENDS)[1]}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
