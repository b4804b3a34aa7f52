"""What one member sends ends no daemon, and what a few send or withhold stops no others: what has done so."""

import dataclasses
from functools import partial

import pytest
from msgspec.structs import replace

from gossipdp.protocol import budgets
from gossipdp.protocol.admission.packing import MAX_RECEIPTS, pack
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.events import (
    ExchangeEnded,
    FinishBegan,
    Notice,
    OverBudget,
    Pace,
    ReceiptsTaken,
    ResyncBegan,
    RoundDone,
    UpdateRefused,
)
from gossipdp.protocol.membership.broadcasts import MOST_STATED, stated_size
from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.wire.encoding import encode
from gossipdp.protocol.wire.messages import (
    Accept,
    Decisions,
    Line,
    Lineage,
    Member,
    Offer,
    Ping,
    Pong,
    Progress,
    PushPull,
    Receipt,
    Refuse,
    State,
    StateRequest,
    StateSample,
)
from simulations.simulator.host import sign, verify
from tests.protocol.admission.deciding import OPERATOR, ban, invited, received
from tests.protocol.peer_rig import OTHER, SCHEMA, Town, a_peer, founded, take

WIDE = "\U0001f600"
SENDER = b"s" * 32
"""id of the hostile member"""


def test_member_that_reports_the_smallest_of_all_speeds__rounds_go_on():
    def slow(host, envelope):
        if host.index == 1 and isinstance(envelope.message, Ping | Pong):
            message = replace(envelope.message, speed=5e-324)
            return (envelope._replace(message=message, frames=encode(message)),)
        return (envelope,)

    town = founded(2, tampers=slow)
    town.start(1)
    town.run(20.0)
    assert len(town.of(0, RoundDone)) > 10 and not town.peer(0).view.training


def longest(number, **fields):
    """A record whose texts are as long as the wire lets them be."""
    others = tuple(f"{WIDE * 60}{number}{place}" for place in range(3))
    texts = {"name": WIDE * 48, "address": WIDE * 60, "software": WIDE * 16, "others": others}
    return Member(number.to_bytes(32, "big"), incarnation=1, refutation=0, **{**texts, "state": State.ALIVE, **fields})


def test_members_with_the_longest_records_all_in_doubt__every_message_fits_its_header():
    peer, now = a_peer(), 1.0
    accusers = tuple(bytes([number]) * 32 for number in range(8))
    long = longest(1, address="a" * 80, others=("b" * 80, "c" * 80, "d" * 80), software="0.1.0")
    assert stated_size(long) <= MOST_STATED
    crowd = [
        Member(bytes([1, number % 256, number // 256]) * 8 + b"." * 8, "g", "", 1, 0, State.LEFT)
        for number in range(520)
    ]
    said = [long, longest(2), replace(long, id=b"t" * 32), Member(SENDER, "s", "10.0.0.2:1", 1, 0, State.ALIVE), *crowd]
    for first in range(0, len(said), 4):
        peer.receive(encode(PushPull(False, tuple(said[first : first + 4]))), SENDER, now)
    assert long.id in peer.view.members and longest(2).id not in peer.view.members
    for _ in range(400):
        now += 0.25
        for doubted in (long, replace(long, id=b"t" * 32)):
            doubt = replace(peer.view.members[doubted.id], state=State.SUSPECT, accusers=accusers)
            peer.receive(encode(Pong(0, (doubt,))), SENDER, now)
        peer.receive(encode(Ping(7, (replace(long, refutation=int(now)),))), long.id, now)
        while (due := peer.timer()) is not None and due <= now:
            peer.handle_timer(now)
        assert all(len(envelope.frames[0]) <= 4096 for envelope in peer.messages_to_send())


def test_holder_of_a_used_invite_that_invents_hosts__news_stay_small_and_few():
    town = Town(2, OPERATOR)
    town.start(0, found=True)
    town.start(1)
    town.run(3.0)
    key, peer, source = b"k" * 32, town.peer(0), town.hosts[1].id
    invite = invited(key, uses=2, expires=1 << 40)
    town.net.command(town.hosts[0], "decide", lambda peer: peer.decide(invite, town.net.now))
    top = 1 << 250
    for _ in range(4):
        top -= 4000
        made = [received(invite, (top - number).to_bytes(32, "big")) for number in range(4000)]
        frames = encode(Decisions(OPERATOR), (pack([invite], made),))
        town.net.command(town.hosts[0], "hears", lambda peer, frames=frames: peer.receive(frames, source, town.net.now))
    town.run(5.0)
    assert len(peer._admission.receipts) <= MAX_RECEIPTS and not town.of(0, UpdateRefused)
    assert all(len(event.receipts) <= MAX_RECEIPTS for event in town.of(0, ReceiptsTaken))


def test_forged_decisions_and_receipts__nothing_after_the_first_is_checked():
    checked = []

    def counted(key, data, signature):
        checked.append(key)
        return verify(key, data, signature)

    invite = invited(b"k" * 32)
    admission = Admission(b"m" * 32, operator=OPERATOR, verify=counted, decisions=[invite])
    checked.clear()
    forged = [replace(ban(bytes([number]) * 32), reason="forged") for number in range(200)]
    assert admission.take(forged) == [] and len(checked) == 1 and admission.unproven(forged, ())
    false = [Receipt(invite.subject, invite.number, bytes([number]) * 32) for number in range(200)]
    assert admission.take_receipts(false) == [] and len(checked) == 2 and admission.unproven((), false)


def test_holder_of_an_invite_mints_genuine_receipts__few_are_checked_and_a_ban_still_comes_through():
    checked, now = [], 0.0

    def counted(key, data, signature):
        checked.append(key)
        return verify(key, data, signature)

    invite = invited(b"k" * 32, expires=1 << 40)
    peer = a_peer(admission=Admission(b"p" * 32, operator=OPERATOR, verify=counted, decisions=[invite]))
    checked.clear()
    for number in range(10):
        now += 1.0
        first = (1 << 250) - 4000 * number
        made = [received(invite, (first - each).to_bytes(32, "big")) for each in range(4000)]
        peer.receive(encode(Decisions(OPERATOR), (pack([], made),)), SENDER, now)
    assert len(checked) <= budgets.SHARED + budgets.BURST + 10 * (budgets.SHARED_RATE + budgets.RATE)
    peer.receive(encode(Decisions(OPERATOR), (pack([ban(b"b" * 32)], []),)), b"t" * 32, now)
    assert peer.view.why_not(b"b" * 32) and peer.next_event() is not None
    while (event := peer.next_event()) is not None:
        assert not isinstance(event, UpdateRefused)


def test_member_floods_offers__few_are_answered():
    peer = a_peer()
    for number in range(2000):
        offer = Offer((1 << 32) + number, b"another schema..", b"the settings....", "modulo4", 0.5, 0.0, 0, 8)
        peer.receive(encode(offer), SENDER, 1.0 + number / 2000)
    answers = [envelope for envelope in peer.messages_to_send() if isinstance(envelope.message, Refuse)]
    assert 50 < len(answers) <= (budgets.BURST + budgets.RATE) / budgets.PRICES[Offer]
    assert take(peer.next_event).count(OverBudget(SENDER, "Offer")) == 2000 - len(answers)


PROVEN = dataclasses.replace(LOCAL, proven_after=20.0)


def old_and_young(young=2, operator=b""):
    """Three peers that have known each other for long, then some more. Returns the network and the ids of these.

    Of lines and speeds the young say what the test says.
    """

    def tampers(host, envelope):
        if host.index > 2 and isinstance(envelope.message, Lineage):
            return ()
        if host.index > 2 and isinstance(envelope.message, Ping | Pong):
            message = replace(envelope.message, speed=None)
            return (envelope._replace(message=message, frames=encode(message)),)
        return (envelope,)

    town = founded(3 + young, membership=PROVEN, tampers=tampers, operator=operator)
    for index in (1, 2):
        town.start(index)
        town.train(index)
    town.run(25.0)
    for index in range(3, 3 + young):
        town.start(index)
    town.run(2.0)
    assert all(len(town.peer(index).view.proven) == 2 for index in range(3))
    return town, [host.id for host in town.hosts[3:]]


def hear(town, index, source, message):
    frames = encode(message)
    town.net.command(town.hosts[index], "hears", lambda peer: peer.receive(frames, source, town.net.now))


def test_two_young_keys_say_that_they_trained_apart_and_are_greater__no_model_is_given_up():
    town, young = old_and_young()
    line = Line(0xFFFF_FFF0, 0xFF_FFFF, 1 << 40, 0xFFFF_FFF0, young[0])
    for number in range(1, 20):
        for index in range(3):
            for source in young:
                word = Lineage(1, number, town.hosts[index].incarnation, True, False, 0, line)
                hear(town, index, source, word)
        town.run(0.5)
    assert not any(town.of(index, ResyncBegan) for index in range(3))
    assert not any(town.peer(index).view.apart for index in range(3))


def test_young_key_asks_all_to_finish__old_members_train_on_and_say_so_and_follow_an_old_one():
    town, _ = old_and_young()
    town.net.command(town.hosts[3], "calls", lambda peer: peer.finish(town.net.now, calls=True))
    town.run(3.0)
    for index in range(3):
        assert not town.of(index, FinishBegan)
        assert {event.code for event in town.of(index, Notice)} == {"GD-406"}
    town.net.command(town.hosts[2], "calls", lambda peer: peer.finish(town.net.now, calls=True))
    town.run(3.0)
    assert all(town.of(index, FinishBegan) for index in range(3))


def test_most_members_are_young_and_report_a_speed__the_length_of_rounds_follows_the_old_ones():
    town, young = old_and_young(young=4)
    for _ in range(20):
        for source in young:
            hear(town, 0, source, Ping(9, (), (), 1e5))
        town.run(0.5)
    assert {event.every for event in town.of(0, Pace)} == {2, 5}, "of the warm start and after it"


def reports(source, clock):
    report = Progress(source, clock, 1 << 30, 1 << 30, 1000)
    return Ping(9, (), (Signer(partial(sign, source), verify).sign_progress(report),))


@pytest.mark.parametrize(("liar", "gain"), [(2, 10_000), (3, 100)], ids=["old", "young"])
def test_one_member_claims_any_clock__the_networks_gains_as_fast_as_training_could_be(liar, gain):
    town, _ = old_and_young()
    before, source = town.peer(0).view.clock, town.hosts[liar].id
    for _ in range(20):
        hear(town, 0, source, reports(source, 1 << 30))
        town.run(0.5)
    assert town.peer(0).view.clock < before + gain


def test_two_old_members_claim_a_clock__it_is_the_networks():
    town, _ = old_and_young()
    for source in (town.hosts[1].id, town.hosts[2].id):
        hear(town, 0, source, reports(source, 1 << 20))
    town.run(0.1)
    assert town.peer(0).view.clock >= 1 << 20


def test_two_banned_members_claim_a_clock_and_a_member_passes_it_on__it_is_not_the_networks():
    town, _ = old_and_young(operator=OPERATOR)
    banned = [host.id for host in town.hosts[1:3]]
    for member in banned:
        town.net.command(town.hosts[0], "bans", lambda peer, member=member: peer.decide(ban(member), town.net.now))
    before = town.peer(0).view.clock
    for member in banned:
        hear(town, 0, town.hosts[3].id, reports(member, 1 << 20))
    town.run(0.1)
    assert town.peer(0).view.clock < before + 100


HONEST, SILENT = range(3), range(3, 7)


def exchanges_of_three(silent, seed):
    """Sides of exchanges that mixed among three members in 30 s, once more members came that answer no offer."""

    def tampers(host, envelope):
        answers = isinstance(envelope.message, Accept | Offer | Refuse)
        return () if host.index in SILENT and answers else (envelope,)

    town = founded(3 + silent, tampers=tampers, seed=seed)
    for index in HONEST[1:]:
        town.start(index)
    town.run(3.0)
    for index in HONEST[1:]:
        town.train(index)
    town.run(10.0)
    for index in SILENT[:silent]:
        town.start(index)
    town.run(3.0)
    for index in SILENT[:silent]:
        town.train(index)
    before = {index: len(town.of(index, ExchangeEnded)) for index in HONEST}
    town.run(30.0)
    ended = [event for index in HONEST for event in town.of(index, ExchangeEnded)[before[index] :]]
    partners = {town.hosts[index].id for index in HONEST}
    assert silent == 0 or all(town.hosts[index].id in town.peer(0).view.members for index in SILENT)
    return sum(event.chunks > 0 for event in ended if event.partner in partners)


@pytest.mark.parametrize("seed", range(3))
def test_four_keys_answer_no_offer__the_others_go_on_exchanging(seed):
    assert exchanges_of_three(4, seed) >= 0.8 * exchanges_of_three(0, seed)


def joins_beside_a_liar(plausible):
    """Two members with one model, and a third with another one, whose model a fourth peer asks for first.

    plausible: no member is a witness. Nobody learns that the models were trained apart.
    """
    asked = []

    def tampers(host, envelope):
        if host.index == 3 and isinstance(envelope.message, StateRequest) and not asked:
            asked.extend([envelope.to] if envelope.to == town.hosts[2].id else [])
            return (envelope,) if asked else ()
        hidden = (Lineage, StateSample) if plausible else Lineage
        return () if isinstance(envelope.message, hidden) else (envelope,)

    town = founded(4, tampers=tampers)
    town.start(1)
    town.run(4.0)
    town.net.start(town.hosts[2], seeds=town.hosts[:1], found=True)
    town.train(2, OTHER)
    town.run(10.0)
    town.start(3)
    town.run(30.0)
    assert asked and town.peer(2).view.model.schema == OTHER
    return town


@pytest.mark.parametrize("plausible", [False, True])
def test_first_source_of_a_joiner_has_another_layout__that_of_two_members_is_taken(plausible):
    town = joins_beside_a_liar(plausible)
    model = town.peer(3).view.model
    assert model is not None and model.schema == SCHEMA
