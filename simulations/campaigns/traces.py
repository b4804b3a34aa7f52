"""Golden traces: short runs, one for each thing the protocol does. `tests/traces/*.txt` keeps and explains them.

    python -m simulations.campaigns.traces              # show what changed
    python -m simulations.campaigns.traces --write      # keep the new traces; read the difference before the commit

A story is a small plan and a part of its trace. Its faults wait for the message that they strike. Its network has no
randomness besides the peers' own: 20 ms one way, and only faults lose messages.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulations.campaigns.duel import MISPREDICTED
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.faults import FOREVER, Fault
from simulations.simulator.network import Conditions, Record
from simulations.simulator.settings import HOST
from simulations.simulator.tracing import Reader

__all__ = ["FOLDER", "STORIES", "Story", "tell"]

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "traces"
ROUNDS = ("has done round",)
EXCHANGES_OF_P2 = ("p2          begins", "p2          has mixed", "p2          ends")
STILL = Conditions(latency=0.02, jitter=0.0, bandwidth=12.5e6)
ARROWS = {
    "-->": "sent",
    "--x": "lost on the way",
    "==>": "sent, and comes twice",
    " -x ": "finds nobody there, or the link cut",
    "***": "a fault",
}
WORDS = {
    "exchange 1.": "exchange L.N: the N-th that its initiator proposed in its L-th life",
    "turn ": "turn: the place of a message in the talk about one chunk; even ones are the initiator's",
    "PingRequest": "PingRequest: whoever had no answer asks another to ping for it; Nack: nor have I",
    "PushPull": "PushPull: two compare all that they know of members",
    "refutation": "refutation: a number that a suspect raises to contradict",
    "Lineage": "Lineage: of which line of the model a peer is, and with how many",
    "StateProbe": "StateProbe, StateSample: a second peer's numbers, to judge the state by",
}
"""words that need an explanation, and the explanation: it goes above a trace that contains the word"""


@dataclass(frozen=True, kw_only=True)
class Story:
    title: str
    text: str
    script: tuple[Fault, ...] = ()
    peers: int = 2
    chunks: int = 1
    seed: int = 1
    begins: str
    """the trace begins with the first line that contains this, at `since` or later; with `around`, with the last such
    line before it"""
    ends: str
    """the trace ends with the first line after it that contains this"""
    around: str = ""
    since: float = 0.0
    times: int = 1
    """number of such lines"""
    only: tuple[str, ...] = ()
    """keep only lines that contain one of these; empty: all lines"""
    without: tuple[str, ...] = ()
    """drop lines that contain one of these"""
    once: tuple[str, ...] = ()
    """drop repetitions of lines that contain one of these"""
    mispredicted: bool = False
    """for two seconds from `since` on, all peers predict far too small a range of their differences"""
    apart_rounds: int = HOST.exchange.apart_rounds
    chaos: float = 14.0


STORIES = {
    "joining": Story(
        title="A joiner finds the network and fetches the state",
        text="""\
            The first peer has founded the network with its training process's model. The second dials it as its seed,
            hears who is there, asks for the state, and takes the chunks that the manifest names, each checked against
            its hash. Only then does its own training process get a session, and starts from the network's model.""",
        chunks=3,
        begins="p1          starts",
        ends="p1          opens session",
    ),
    "exchange": Story(
        title="Two peers exchange one chunk",
        text="""\
            Offer and Accept settle the terms. The initiator predicts ranges, the responder answers with its own and
            with codes, the initiator sends its codes: now the responder knows the difference of the two replicas,
            mixes, and says so. The initiator mixes when it hears it, with the very same difference and the other
            sign.""",
        begins="Offer exchange",
        around="Accept",
        ends="ends exchange",
        times=2,
        since=4.0,
        without=ROUNDS,
    ),
    "ack-lost": Story(
        title="An Ack is lost and asked for again",
        text="""\
            The responder has mixed, and its last word is lost. The initiator may neither mix nor give up: it asks what
            the responder answered, and the log of what was mixed answers. Nothing is mixed twice, nothing half. The
            responder, for whom the exchange is over, finds its partner busy meanwhile.""",
        script=(Fault(at=7.0, kind="lose", hosts=(0,), lasts=0.0, on="Ack", busy=True),),
        begins="Offer exchange",
        around="***",
        ends="ends exchange",
        times=2,
        since=6.5,
        without=ROUNDS,
    ),
    "doubt": Story(
        title="A responder crashes with a chunk in doubt",
        text="""\
            The responder mixes, its Ack is lost, and it dies. Nobody can know any more whether it had mixed: its anchor
            is gone with it. The initiator asks until a new incarnation answers in its place; then it counts the chunk
            as in doubt, drops it unmixed, and goes on. What is lost is at most half a step of this one chunk.""",
        script=(
            Fault(at=7.0, kind="lose", hosts=(0,), lasts=0.0, on="Ack", busy=True),
            Fault(at=7.0, kind="crash", hosts=(0,), lasts=3.0, on="Ack", busy=True),
        ),
        begins="Offer exchange",
        around="***",
        ends="counts in doubt",
        since=6.5,
        without=ROUNDS,
    ),
    "refutation": Story(
        title="A suspicion is refuted",
        text="""\
            For a second and a half nothing gets out of p2, though all reaches it. Whoever probes it hears nothing, not
            even through the others, and suspects it. The suspicion reaches p2 too, which refutes it with a higher
            refutation number: that overrides what is said of it as soon as it can be heard again. Nobody hears the
            probes of p2 either, so that it suspects in its turn, p0 first; its suspicions end in the same way.""",
        script=(Fault(at=8.0, kind="one-way", hosts=(2,), lasts=1.5),),
        seed=11,
        peers=3,
        begins="***",
        ends="p2          holds p0 for alive, suspected before",
        since=7.9,
        only=("***", "Ping:", "Pong:", "PingRequest", "Nack", "PushPull:", "holds", "links"),
    ),
    "failure": Story(
        title="A crash is found out, and the peer comes back",
        text="""\
            A peer dies. The others probe it in vain, suspect it, confirm each other's suspicion and hold it for failed.
            It restarts with the next incarnation, which is alive whatever was said of the one before; it fetches the
            state, its training process goes on from there, and it exchanges as before.""",
        script=(Fault(at=8.0, kind="crash", hosts=(2,), lasts=6.0, trainer=True),),
        peers=3,
        begins="***",
        ends="p2          ends exchange 2",
        since=7.9,
        only=("***", "Ping:", "Pong:", "PingRequest", "Nack", "PushPull:", "holds", "p2          ", "State"),
        without=("is gone", *ROUNDS),
    ),
    "apart": Story(
        title="A network that was cut in two is one again",
        text="""\
            p2 is cut off from the others for 12 s, in which all train on. That is more than the four rounds after which
            two models are too far apart to be averaged. When the cut is over all find each other alive; each has
            told of which line of the model it is, and of the two sides the smaller follows: it fetches the state of
            the larger, has it judged by a second peer, and only then exchanges again.""",
        script=(Fault(at=8.0, kind="halves", hosts=(2,), lasts=12.0),),
        peers=3,
        apart_rounds=4,
        begins="***",
        ends="p2          ends exchange",
        since=7.9,
        only=("***", "holds", "links", "apart", "State", "the model", "the state", *EXCHANGES_OF_P2),
        without=("operator", *ROUNDS),
        once=("Lineage",),
    ),
    "escalation": Story(
        title="A difference is larger than was predicted",
        text="""\
            Codes tell a difference only up to the range that both sides predicted. Here they predicted far too little,
            and the check that goes with each block of codes fails. Both send higher bits of these blocks, in as many
            turns more as it takes until the checks agree: two of them here. Only then anything is mixed.""",
        mispredicted=True,
        begins="Offer exchange",
        around="Accept",
        ends="ends exchange",
        times=2,
        since=6.5,
        without=ROUNDS,
    ),
    "leaving": Story(
        title="A peer leaves",
        text="""\
            It offers and accepts no more, finishes what is under way, says goodbye to some, who tell the others, and is
            never suspected.""",
        script=(Fault(at=8.0, kind="leave", hosts=(2,), lasts=FOREVER),),
        peers=3,
        begins="is told to leave",
        ends="holds p2 for gone",
        times=2,
        since=7.9,
        only=("leave", "goodbye", "p2 -->", "holds", "Ping:", "Pong:", "p2          "),
    ),
}


def tell(story: Story) -> str:
    """Play the story. Return its title, its text and its trace.

    Raises:
        ValueError: the trace has no such part.
    """
    plan = Plan(
        peers=story.peers,
        size=8192 * (story.chunks - 1) + 300,
        buffers=0,
        conditions=STILL,
        before=STILL,
        every=8,
        window=2,
        script=story.script,
        apart_rounds=story.apart_rounds,
        chaos=story.chaos,
    )
    records: list[Record] = []
    cluster = Cluster(story.seed, plan, records.append)
    if story.mispredicted:
        # Each step makes new predictions.
        for beat in range(100):
            cluster.network.at(story.since + 0.02 * beat, "mispredict", None, lambda: _mispredict(cluster))
    cluster.run()
    names = {host.id: host.name for host in cluster.network.hosts}
    kept = [record for record in records if record.at >= story.since]
    begin = _begin(story, kept, Reader(names))
    lines = Reader(names).lines(kept[begin:], since=kept[begin].at)
    ends = [place for place, line in enumerate(lines) if story.ends in line]
    if len(ends) < story.times:
        raise ValueError(f"{len(ends)} lines contain {story.ends!r}, not {story.times}")
    part = [
        line
        for line in lines[: ends[story.times - 1] + 1]
        if (not story.only or any(words in line for words in story.only))
        and not any(words in line for words in story.without)
    ]
    part = _once(part, story.once)
    heading = textwrap.fill(textwrap.dedent(story.text).replace("\n", " "), 100)
    return "\n".join([story.title, "", heading, "", *legend(part), "", "  seconds", *part]) + "\n"


def legend(lines: Sequence[str]) -> list[str]:
    """Explanations of the signs and words in these lines."""
    text = "\n".join(lines)
    signs = "; ".join(f"{sign.strip()} {means}" for sign, means in ARROWS.items() if sign in text)
    said = [f"{means}." for word, means in WORDS.items() if word in text]
    return [line for entry in (f"{signs}.", *said) for line in textwrap.wrap(entry, 100)]


def _once(lines: Sequence[str], words: Sequence[str]) -> list[str]:
    """The lines, without repetitions of those that contain one of `words`. Repetitions may differ in their time."""
    told: set[str] = set()
    kept = []
    for line in lines:
        said = line.split(maxsplit=1)[1]
        if said not in told or not any(word in line for word in words):
            kept.append(line)
        told.add(said)
    return kept


def _mispredict(cluster: Cluster) -> None:
    for host in cluster.network.hosts:
        blocks = slice(0, len(host.algorithm.ledger.blocks[0]))
        host.algorithm.range[blocks], host.algorithm.moved[blocks] = MISPREDICTED, 0.0


def _begin(story: Story, records: Sequence[Record], reader: Reader) -> int:
    begin = None
    for place, record in enumerate(records):
        line = reader.line(record) or ""
        if story.begins in line:
            begin = place
        if begin is not None and story.around in line:
            return begin
    raise ValueError(f"no line contains {story.begins!r}, or none after it {story.around!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.campaigns.traces", description=__doc__.splitlines()[0])
    parser.add_argument("stories", nargs="*", metavar="STORY", help=f"of {', '.join(STORIES)} (all)")
    parser.add_argument("--write", action="store_true", help="keep what is told now")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.stories if name not in STORIES]:
        parser.error(f"no such story: {', '.join(unknown)}; there are {', '.join(STORIES)}")
    changed = False
    for name in options.stories or STORIES:
        path = FOLDER / f"{name}.txt"
        before, now = path.read_text() if path.exists() else "", tell(STORIES[name])
        if before == now:
            continue
        changed = True
        print("".join(difflib.unified_diff(before.splitlines(True), now.splitlines(True), str(path), "now")), end="")
        if options.write:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(now)
    return int(changed and not options.write)


if __name__ == "__main__":
    sys.exit(main())
