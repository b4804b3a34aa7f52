"""Campaign T2: one exchange, every message lost or doubled, either side gone after every event. The campaign notices
mistakes that are made on purpose in the count of chunks in doubt."""

import pytest

from gossipdp.protocol.events import ChunksInDoubt
from gossipdp.protocol.pairwise.initiator import Initiator
from gossipdp.protocol.pairwise.responder import Responder
from simulations.campaigns import exhaustive
from simulations.campaigns.duel import Duel
from simulations.campaigns.exchange_faults import Fault
from simulations.campaigns.exhaustive import (
    AT_ONCE,
    BREAKS,
    CASES,
    OF_MESSAGES,
    SETTINGS,
    brief,
    crashes,
    others,
    pairs,
    play,
    sample,
    second,
    singles,
)
from tests.simulations.faulty_responders import reopen_mixed_chunks

PARTS = 13
"""parts of the cases of two faults; each takes half a minute of a core"""


def long_but(*quick):
    """All settings; those that are not `quick` take long."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in SETTINGS]


def violations(setting, cases):
    told = {" and ".join(map(str, case)): play(SETTINGS[setting], case) for case in cases}
    return {case: violated for case, violated in told.items() if violated}


@pytest.fixture(scope="module")
def untouched():
    """The exchange of each setting without faults, played once per process."""
    duels = {name: Duel(setting) for name, setting in SETTINGS.items()}
    for duel in duels.values():
        duel.play()
    return duels


@pytest.mark.campaign("T2")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_brief_cases_leave_an_exchange_right(setting, every, record_property):
    cases = brief(SETTINGS[setting])[::every]
    record_property("cases", len(cases))
    assert not violations(setting, cases)


@pytest.mark.campaign("T2")
@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("part", range(8))
def test_every_single_fault_leaves_an_exchange_right(setting, part, record_property):
    cases = singles(SETTINGS[setting])[part::8]
    record_property("cases", len(cases))
    assert not violations(setting, cases)


@pytest.mark.campaign("T2")
@pytest.mark.long
@pytest.mark.parametrize("two", ["pairs", "crashes", "others"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_two_faults_leave_an_exchange_right(setting, two, part, record_property):
    cases = CASES[two](SETTINGS[setting])[part::PARTS]
    record_property("cases", len(cases))
    assert not violations(setting, cases)


@pytest.mark.campaign("T2")
@pytest.mark.parametrize("setting", long_but("crossing"))
def test_faults_of_recovery_messages_leave_an_exchange_right(setting, record_property):
    """A sample of two faults: a lost message and then a question, its answer or the End; and two breaks."""
    lost = [case[0] for case in singles(SETTINGS[setting]) if case and case[0].kind == "lose"]
    answers = [
        case
        for first in lost[2::5]
        for case in second(SETTINGS[setting], first, ("lose", "double"))
        if case[1].label.kind in ("Ask", "Miss", "Void", "End")
    ]
    broken = [case[0] for case in singles(SETTINGS[setting]) if case and case[0].kind in BREAKS][7::53]
    breaks = [case for first in broken for case in second(SETTINGS[setting], first, BREAKS)]
    cases = [answers[number] for number in sample(answers, 8, seed=1)]
    cases += [breaks[number] for number in sample(breaks, 6, seed=1)]
    assert len(cases) == 14 and {case[1].label.kind for case in cases if case[1].label} >= {"Ask", "End"}
    record_property("cases", len(cases))
    assert not violations(setting, cases)


def test_parts_are_all_cases_and_a_sample_is_some_of_them():
    cases = CASES["singles"](SETTINGS["narrow"])
    assert sum(len(cases[part::PARTS]) for part in range(PARTS)) == len(cases)
    numbers = sample(cases, 40, seed=7)
    assert numbers == sample(cases, 40, seed=7) != sample(cases, 40, seed=8)
    assert len(set(numbers)) == 40 and numbers[0] >= 0 and numbers[-1] < len(cases)


# -- what the campaign reaches -----------------------------------------------------------------------------------


def test_all_turns_of_a_chunk_occur_and_every_message_is_struck_in_every_way(untouched):
    labels = untouched["wide"].labels
    wanted = {("Offer", -1), ("Accept", -1), ("Ranges", -1), ("Data", 1), ("Data", 2), ("Data", 3), ("Data", 4)}
    assert wanted | {("Ack", 3), ("Ack", 5), ("End", -1)} <= {(label.kind, label.turn) for label in labels}
    struck = {(fault.label, fault.kind) for case in singles(SETTINGS["wide"]) for fault in case if fault.label}
    assert struck == {(label, kind) for label in labels for kind in (*OF_MESSAGES, "again")}


def test_faults_strike_after_every_event_from_the_offer_to_the_end(untouched):
    duel = untouched["wide"]
    steps = duel.steps[: duel.last_step + 1]
    assert steps[0].kind == "message Offer" and steps[-1].kind == "message End"
    jobs = ("Begin", "Answer", "Decode", "DecodeAndMix", "Mix")
    assert {f"{verb} {job}" for verb in ("run", "done") for job in jobs} <= {step.kind for step in steps}


@pytest.mark.parametrize("setting", SETTINGS)
def test_brief_selection_loses_and_doubles_every_message_and_crashes_either_side_after_every_event(untouched, setting):
    duel = untouched[setting]
    faults = [fault for case in brief(SETTINGS[setting]) for fault in case]
    for kind in ("lose", "double"):
        assert {fault.label for fault in faults if fault.kind == kind} == set(duel.labels)
    crashes = [fault for fault in faults if fault.kind == "crash"]
    everywhere = {(after, host) for after in range(duel.last_step + 1) for host in (0, 1)}
    assert {(fault.after, fault.host) for fault in crashes} == everywhere
    assert {(fault.lasts > AT_ONCE, fault.disk) for fault in crashes} == {(False, True), (True, True), (True, False)}
    assert {fault.kind for fault in faults} == {case[0].kind for case in singles(SETTINGS[setting])[1:]}


def test_other_settings_use_one_place_cross_offers_and_are_cut_short(untouched):
    assert [label.chunk for label in untouched["narrow"].labels if label.kind in ("Ranges", "Ack")] == [0, 0, 1, 1]
    assert {label.sender for label in untouched["crossing"].labels if label.kind == "Offer"} == {0, 1}
    assert [str(label) for label in untouched["slow"].labels if label.kind == "Void"] == ["p1 Void chunk 2"]


def test_second_fault_strikes_the_exchange_that_contains_the_first(untouched):
    setting, duel = SETTINGS["wide"], untouched["wide"]
    lost = Fault(kind="lose", label=next(label for label in duel.labels if label.kind == "Ack"))
    again = Duel(setting, (lost,))
    again.play()
    place = again.labels.index(lost.label)
    two = second(setting, lost, OF_MESSAGES)
    assert [case[1].label for case in two[:: len(OF_MESSAGES)]] == again.labels[place + 1 :]
    assert all(case[0] == lost for case in two)
    said = {case[1].label.kind for case in two}
    assert {"Ask", "Ack", "End"} <= said and "Ask" not in {label.kind for label in duel.labels}
    stops = second(setting, lost, ("crash",))
    assert len(stops) == 2 * 2 * (again.last_step + 1 - again.struck[1]) and again.last_step > duel.last_step
    assert stops[0][1].after >= again.struck[1] and all(case[1].disk for case in stops)


def test_crashes_come_first_too_and_some_breaks_are_followed_by_another(monkeypatch):
    """With a few first faults only, because all take long."""
    setting = SETTINGS["narrow"]
    few = singles(setting)
    few = [(), *[case for case in few if case and case[0].kind in ("lose", *BREAKS)][::40]]
    monkeypatch.setattr(exhaustive, "singles", lambda setting: few)
    kinds = {tuple(fault.kind for fault in case) for case in crashes(setting)}
    assert ("lose", "crash") in kinds and ("crash", "lose") in kinds and ("crash", "crash") not in kinds
    assert {case[1].kind for case in pairs(setting)} == {*OF_MESSAGES}
    breaks = others(setting)
    assert {case[0].kind for case in breaks} <= {*BREAKS} and {case[1].kind for case in breaks} & {*BREAKS}
    assert len(breaks) <= exhaustive.OTHERS * len(few) and breaks == others(setting)


def test_same_case_comes_out_the_same():
    case = singles(SETTINGS["wide"])[300]
    hashes = set()
    for _ in range(2):
        duel = Duel(SETTINGS["wide"], case)
        duel.play()
        hashes.add(duel.network.log_hash)
    assert len(hashes) == 1


# -- mistakes made on purpose ------------------------------------------------------------------------------------


def crash(after, host, lasts=1.5):
    return (Fault(kind="crash", after=after, host=host, lasts=lasts),)


@pytest.fixture
def event(untouched):
    """Number of an event of the exchange without faults."""

    def number(setting, kind, host, occurrence=0):
        steps = enumerate(untouched[setting].steps)
        return [number for number, step in steps if (step.host, step.kind) == (host, kind)][occurrence]

    return number


def test_question_about_a_chunk_that_never_came_tells_that_the_one_before_is_settled(untouched):
    """Found among `crashes`: the responder counted a chunk although it had been asked for the next."""
    label = next(label for label in untouched["narrow"].labels if label.kind == "Ranges" and label.chunk == 1)
    lost = Fault(kind="lose twice", label=label)
    duel = Duel(SETTINGS["narrow"], (lost,))
    duel.play()
    asked = next(number for number, step in enumerate(duel.steps) if (step.host, step.kind) == (1, "message Ask"))
    assert play(SETTINGS["narrow"], (lost, *crash(asked, 0))) == ""


def test_acceptance_by_a_life_known_to_be_over_begins_no_exchange_on_its_terms(untouched, event):
    """Found among `crashes`: the later life accepted a copy of the offer on other terms."""
    accept = next(label for label in untouched["wide"].labels if label.kind == "Accept")
    late = Fault(kind="behind", label=accept)
    assert play(SETTINGS["wide"], (late, *crash(event("wide", "message Accept", 0), 1, AT_ONCE))) == ""


def test_void_that_comes_during_a_job_and_is_forgotten_is_noticed(event, monkeypatch):
    case = crash(event("slow", "message Void", 0), 1)
    assert play(SETTINGS["slow"], case) == ""
    monkeypatch.setattr(Initiator, "_make_void", Initiator._forget)
    assert play(SETTINGS["slow"], case) == "I2 (0, 1): 1 counted, 0 cannot be known"


def test_chunk_counted_before_it_is_known_to_be_mixed_is_noticed(event, monkeypatch):
    def give_up(self, now):
        self.close("lost", now)
        if not self._settled and (doubts := len(self._mixed) + self.mixing):
            self._outputs.emit(ChunksInDoubt(self.terms.partner, doubts))
        self._settled = True

    case = crash(event("crossing", "message Data", 1), 0, AT_ONCE)
    assert play(SETTINGS["crossing"], case) == ""
    monkeypatch.setattr(Responder, "give_up", give_up)
    assert play(SETTINGS["crossing"], case) == "I2 (1, 1): 1 counted, 0 cannot be known"


def test_whole_window_counted_where_one_place_is_known_to_be_taken_is_noticed(event, monkeypatch):
    case = crash(event("narrow", "message Ranges", 1, 1), 0)
    assert play(SETTINGS["narrow"], case) == ""
    monkeypatch.setattr(Responder, "_in_doubt", lambda self: min(len(self._mixed), self.terms.window))
    assert play(SETTINGS["narrow"], case) == "I2 (1, 1): 1 counted, 0 cannot be known"


def test_doubts_that_no_peer_counts_are_noticed(event, monkeypatch):
    # The Ack is on its way: the initiator is gone before it arrives, or the responder after it was sent.
    initiator, responder = crash(event("wide", "done DecodeAndMix", 1, 1), 0), crash(event("wide", "done Decode", 0), 1)
    assert not violations("wide", [initiator, responder])
    monkeypatch.setattr(Responder, "_count_doubts", lambda self: None)
    monkeypatch.setattr(Initiator, "in_doubt", property(lambda self: 0))
    assert "I2 p1, life 1" in play(SETTINGS["wide"], initiator)
    assert "I2 (0, 1)" in play(SETTINGS["wide"], responder)


def test_chunk_opened_anew_that_was_mixed_already_is_noticed(untouched, monkeypatch):
    again = [case for case in brief(SETTINGS["wide"]) if case and case[0].kind == "again"]
    assert again and not violations("wide", again)
    reopen_mixed_chunks(monkeypatch)
    assert any("I4" in told or "applied twice" in told for told in violations("wide", again).values())


def test_void_said_of_a_mixed_chunk_is_noticed(untouched, monkeypatch):
    """A lost acknowledgement is then never repaired."""
    original = Responder._answer

    def answer(self, number, turn):
        self._void.update(self._mixed)
        mixed, self._mixed = self._mixed, {}
        original(self, number, turn)
        self._mixed = mixed

    lost = next(label for label in untouched["wide"].labels if label.kind == "Ack")
    monkeypatch.setattr(Responder, "_answer", answer)
    assert "never settled" in play(SETTINGS["wide"], (Fault(kind="lose", label=lost),))
