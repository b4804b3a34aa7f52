"""The golden traces. Their files are also documentation."""

import pytest

from gossipdp.protocol.wire.messages import Ack, Member, Ping, State
from simulations.campaigns import traces
from simulations.campaigns.traces import FOLDER, STORIES, tell
from simulations.simulator.faults import Fault
from simulations.simulator.network import Record
from simulations.simulator.tracing import Reader, about, concerning, names, sentence


@pytest.mark.parametrize("name", STORIES)
def test_trace_is_unchanged(name):
    kept = (FOLDER / f"{name}.txt").read_text()
    again = "python -m simulations.campaigns.traces --write"
    assert tell(STORIES[name]) == kept, f"the protocol does something else now: {again}"


def test_every_file_is_a_story_and_short():
    assert {path.stem for path in FOLDER.iterdir()} == set(STORIES)
    for path in FOLDER.iterdir():
        lines = path.read_text().splitlines()
        assert len(lines) <= 64 and max(map(len, lines)) <= 110, path.name


def told(text):
    """The lines of a trace, without its heading."""
    return text.partition("  seconds\n")[2].splitlines()


def place(text, words):
    return next(number for number, line in enumerate(told(text)) if words in line)


def test_lost_ack_is_asked_for_before_the_initiator_mixes():
    text = (FOLDER / "ack-lost.txt").read_text()
    asked = place(text, "Ask for chunk 0")
    mixed = [number for number, line in enumerate(told(text)) if "has mixed chunk 0" in line]
    assert place(text, "--x") < asked < mixed[1] and mixed[0] < place(text, "--x") and len(mixed) == 2


def test_chunk_in_doubt_is_mixed_on_one_side_and_counted_on_the_other():
    text = (FOLDER / "doubt.txt").read_text()
    assert text.count("has mixed") == 1 and text.count("counts in doubt") == 1
    assert place(text, "has mixed") < place(text, "*** p1 crashes") < place(text, "counts in doubt")


def test_suspect_refutes_before_any_peer_believes_it_failed():
    text = (FOLDER / "refutation.txt").read_text()
    assert "holds p2 for failed" not in text and "p2 alive (refutation 1)" in text


def test_silenced_host_suspects_others_and_both_suspicions_end():
    text = (FOLDER / "refutation.txt").read_text()
    assert place(text, "holds p0 for suspected") < place(text, "links are whole") < place(text, "holds p0 for alive")


def test_failed_peer_is_back_when_it_has_the_model_and_exchanges():
    text = (FOLDER / "failure.txt").read_text()
    story = ("p2 for failed", "p2          starts", "StateRequest", "has the model", "opens session", "begins exchange")
    places = [place(text, words) for words in story]
    assert places == sorted(places) and text.splitlines()[-1].endswith("done, 1 of 1 chunks mixed")


def test_smaller_side_follows_before_it_exchanges():
    text = (FOLDER / "apart.txt").read_text()
    story = (
        "cut off",
        "holds p2 for failed",
        "whole again",
        "apart from you",
        "follows 2",
        "plausible",
        "p2          has the model of",
    )
    places = [place(text, words) for words in story]
    assert places == sorted(places) and place(text, "p2          begins exchange") > places[-1]
    assert "p1          follows" not in text and "p0          follows" not in text


def test_nothing_is_mixed_before_the_checks_agree():
    text = (FOLDER / "escalation.txt").read_text()
    assert place(text, "turn 4") < place(text, "has mixed") < place(text, "Ack of chunk 0, turn 5")


@pytest.mark.parametrize("name", STORIES)
def test_every_sign_and_word_of_a_trace_has_its_legend(name):
    head, _, lines = (FOLDER / f"{name}.txt").read_text().partition("\n  seconds\n")
    head = " ".join(head.split())
    for sign, means in traces.ARROWS.items():
        assert (sign in lines) == (f"{sign.strip()} {means}" in head), sign
    for word, means in traces.WORDS.items():
        assert (word in lines) == (means in head), word


def test_changed_trace_is_shown_and_fails_until_it_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(traces, "FOLDER", tmp_path)
    assert traces.main(["leaving"]) == 1 and "+A peer leaves" in capsys.readouterr().out
    assert traces.main(["leaving", "--write"]) == 0 and traces.main(["leaving"]) == 0
    (tmp_path / "leaving.txt").write_text("something else\n")
    assert traces.main(["leaving"]) == 1 and "-something else" in capsys.readouterr().out


def test_unknown_story_is_a_usage_error(capsys):
    with pytest.raises(SystemExit, match="2"):
        traces.main(["nonsense"])
    assert "no such story: nonsense" in capsys.readouterr().err


def test_story_without_its_moment_names_the_missing_line():
    story = STORIES["leaving"]
    with pytest.raises(ValueError, match="no line contains 'dances'"):
        tell(type(story)(title="", text="", begins="dances", ends=""))


# -- reading records ------------------------------------------------------------------------------------------------

P2 = Member(b"2" * 32, "p2", "10.0.0.2:4000", 1, 0, State.SUSPECT, accusers=(b"1" * 32,))


def test_gossip_has_one_line_and_another_if_the_first_was_lost():
    reader = Reader({b"1" * 32: "p1"})
    news = Ping(1, (P2,))
    lost, sent, again = (Record(at, kind, 0, 1, news) for at, kind in ((1.0, "lost"), (2.0, "sent"), (3.0, "sent")))
    assert reader.lines([lost, sent, again]) == [
        "    1.000    p0 --x p1   Ping: p2 suspected by p1",
        "    2.000    p0 --> p1   Ping: p2 suspected by p1",
    ]


def test_probes_without_news_have_lines_only_right_after_a_start():
    probe = Record(1.0, "sent", 0, 1, Ping(1))
    assert Reader({}).lines([probe]) == []
    assert Reader({}).lines([Record(0.5, "starts", 1), probe])[1].endswith("p0 --> p1   Ping")


def test_failure_names_the_peers_and_the_exchange_it_concerns():
    text = "I2: chunk 1 of exchange 2.7 was never settled between p9, life 1 and p6, life 1"
    assert concerning(text, 12) == (frozenset({6, 9}), "2.7")
    assert concerning("I7 p3 has no model at the end", 12) == (frozenset({3}), "")
    assert concerning("I7 p30 has no model at the end", 12) == (frozenset(), "")


def test_records_of_other_peers_and_other_exchanges_are_left_out():
    ours, theirs = Ack((1 << 32) + 4, 0, 3, 1.0), Ack((1 << 32) + 5, 0, 3, 1.0)
    wanted = about({0, 1}, "1.4")
    assert wanted(Record(1.0, "sent", 0, 1, ours)) and wanted(Record(1.0, "stops", 1))
    assert not wanted(Record(1.0, "sent", 0, 1, theirs)) and not wanted(Record(1.0, "sent", 0, 2, ours))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(at=1.0, kind="crash", hosts=(2,), lasts=0.5, trainer=True, disk=False),
         "p2 crashes with its training process and its disk, back after 500 ms"),
        (Fault(at=1.0, kind="halves", hosts=(4, 2, 3, 7), lasts=2.0),
         "p2-p4 and p7 and the rest are cut off from each other for 2 s"),
        (Fault(at=1.0, kind="lose", hosts=(1,), lasts=0.0, on="Ack"), "the next Ack of p1 is lost"),
        (Fault(at=1.0, kind="pause", hosts=(1,), lasts=6.0, on="Data"), "p1 stops for 6 s, as p1 sends its next Data"),
        (Fault(at=1.0, kind="die", hosts=(1,), lasts=float("inf"), busy=True),
         "the training process of a host in the middle of an exchange, else p1, dies"),
    ],
)  # fmt: skip
def test_faults_are_described_in_words(fault, words):
    assert sentence(fault) == words


def test_hosts_in_a_row_become_a_range():
    assert [names(hosts) for hosts in ((3,), (1, 2), (5, 3, 4), (0, 1, 2, 9))] == [
        "p3",
        "p1 and p2",
        "p3-p5",
        "p0-p2 and p9",
    ]
