"""A state taken over with its summary: exactly the increments that are not inside are applied."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.epidemic import state_summary
from gossipdp.protocol.epidemic.epoch_set import MAX_LIVES
from gossipdp.protocol.epidemic.epochs import MAX_HELD
from gossipdp.protocol.epidemic.events import EpochGathered, RumourReceived
from gossipdp.protocol.epidemic.signing import make
from gossipdp.protocol.epidemic.state_summary import Summary
from gossipdp.protocol.events import EpochSettled, Notice
from gossipdp.protocol.wire.epidemic_messages import NO_RUN, Graft, Rumour, RumourPart, Want
from tests.protocol.epidemic.broadcast_network import Net, peer, signature, verify
from tests.protocol.epidemic.broadcast_rig import EPOCH, SPAN, Rig, Told


def ready(count=4, seed=1):
    net = Net(count, seed)
    for _ in range(2):
        net.round()
        net.tick(100)
    return net


def read(data, *, span=100, verify=lambda *_: True):
    return state_summary.unpack(data, span=span, run=NO_RUN, largest=1000, verify=verify)


def first(net):
    return next(iter(net.hosts.values()))


def newcomer(net):
    """A new host, and a function that gives it the state that the first host has now."""
    source = first(net)
    summary, inside = source.machine.summary(), source.applied.copy()
    host = net.start(9)
    net.tell()

    def take_over():
        host.applied = inside
        assert host.machine.adopt(summary, net.now)
        net.drain(host)

    return host, take_over


def test_newcomer_applies_increments_that_its_state_lacks():
    net = ready()
    host = net.join(9, first(net))
    assert host.of(RumourReceived) == [] and net.wrong() == []
    net.round()
    net.settle()
    assert net.wrong() == [] and len(host.of(RumourReceived)) == 4


def test_announced_increment_inside_the_state_is_not_fetched():
    net = ready()
    source, host = first(net), net.start(9)
    net.tell()
    while not len(host.machine._fetches):
        net.run(0.01)
    net.adopt(host, source)
    assert len(host.machine._fetches) == 0


def test_payload_inside_the_new_state_is_kept_for_other_peers_and_not_handed_out_again():
    rig, told = Rig(), Told(peer(1))
    rig.tell(peer(1), told)
    rig.events()
    summary = rig.machine.summary()
    rig.machine.hold()
    assert rig.machine.adopt(summary, 0.0) and rig.events(RumourReceived) == []
    rig.take()
    rig.say(peer(2), Graft((Want(told.name, 0),)))
    assert [message.part for _, message in rig.take(RumourPart, to=peer(2))] == [0]


def test_early_increment_too_long_for_the_model_is_dropped():
    rig, kept = Rig(applies=False), Told(peer(1), parts=[bytes(1000)])
    summary = rig.machine.summary()
    rig.machine.hold()
    for told in (Told(peer(2), parts=[bytes(1001)]), kept):
        rig.tell(peer(1), told)
    assert len(list(rig.machine._store.records())) == 2
    rig.machine.limit(1000)
    assert rig.machine.adopt(summary, 0.0)
    assert [event.name for event in rig.events(RumourReceived)] == [kept.name]
    assert [record.name for record in rig.machine._store.records()] == [kept.name]


def test_payload_handed_out_again_is_kept_until_it_is_applied():
    rig, told = Rig(retain=20, applies=False), Told(peer(1), parts=[bytes(12)])
    summary = rig.machine.summary()
    rig.tell(peer(1), told)
    rig.machine.applied(told.name)
    rig.machine.hold()
    assert rig.machine.adopt(summary, 0.0) and len(rig.events(RumourReceived)) == 2
    rig.tell(peer(2), Told(peer(2), parts=[bytes(15)]))
    assert rig.machine.counts["room"] == 1
    rig.machine.applied(told.name)
    rig.tell(peer(2), Told(peer(2), parts=[bytes(15)]))
    assert rig.machine._store.get(told.name) is None


def test_increments_that_come_during_a_fetch_are_applied_after_it():
    net = ready()
    host, take_over = newcomer(net)
    for each in [each for each in net.hosts.values() if each is not host]:
        net.publish(each)
    net.run(8.0)
    assert host.of(RumourReceived) == [] and host.machine.counts["payload"] > 0
    take_over()
    assert len(host.of(RumourReceived)) == 4
    net.settle()
    assert net.wrong() == [] and all(len(digests) == 1 for digests in net.digests().values())


def test_transfer_longer_than_an_epoch_lasts_loses_nothing():
    net = ready()
    host, take_over = newcomer(net)
    for _ in range(6):
        for each in [each for each in net.hosts.values() if each is not host]:
            net.publish(each)
        net.run(6.0)
        net.tick(100)
    take_over()
    net.settle()
    assert net.wrong() == [] and len(host.of(RumourReceived)) == 6 * 4
    assert all(len(digests) == 1 for digests in net.digests().values())


def test_older_state_gets_again_what_it_lacks_own_increments_included():
    net = ready()
    source, host = list(net.hosts.values())[:2]
    host.machine.hold()
    summary, inside = source.machine.summary(), source.applied.copy()
    own = next(name for name, origin in net.published.items() if origin == host.id)
    kept = read(summary)
    assert kept is not None
    older = msgspec.structs.replace(kept, inside=tuple(r for r in kept.inside if r.origin != host.id))
    host.applied = inside
    for name, origin in net.published.items():
        if origin == host.id:
            host.applied[name] -= 1
    assert host.machine.adopt(msgspec.msgpack.encode(older), net.now)
    net.drain(host)
    assert own in {event.name for event in host.of(RumourReceived)}
    net.settle()
    assert net.wrong() == []


def test_while_held_nothing_is_handed_out_published_settled_or_summarised():
    net = ready(3)
    host = first(net)
    before = len(host.of(RumourReceived)), len(host.of(EpochSettled))
    host.machine.hold()
    for each in list(net.hosts.values())[1:]:
        net.publish(each)
    assert host.machine.publish([b"x"], weight=0.5, clock=net.clock, samples=1, now=net.now) is None
    for _ in range(5):
        net.run(4.0)
        net.tick(100)
    assert (len(host.of(RumourReceived)), len(host.of(EpochSettled))) == before
    with pytest.raises(LocalProtocolError):
        host.machine.summary()


def test_summary_tells_proofs_too():
    net = ready(3)
    host, other = list(net.hosts.values())[:2]
    for payload in (b"one", b"another"):
        draft = Rumour(host.id, 1, net.clock // 100, 9, 0.5, net.clock, 10, 1, 1, bytes(32), bytes(64))
        rumour, _ = make(draft, [payload], NO_RUN, lambda data: signature(host.id, data))
        other.machine.receive(rumour, (), host.id, net.now)
    taken = read(other.machine.summary())
    assert taken is not None and len(taken.proofs) == 1 and {r.origin for r in taken.proofs[0]} == {host.id}


# -- whole epochs -----------------------------------------------------------------------------------------------------


def gathering(*told):
    """A machine that took over a state with these increments inside, and the messages that it sent."""
    rig = Rig(gather=True)
    giver = Rig(gather=True)
    for one in told:
        giver.tell(one.header.origin, one)
    rig.machine.hold()
    assert rig.machine.adopt(giver.machine.summary(), rig.now)
    return rig


def gathered(rig):
    return {event.epoch: [parts for _, parts in event.rumours] for event in rig.events(EpochGathered)}


def test_epoch_is_handed_out_as_it_settles_in_an_order_that_all_share():
    rig = Rig(gather=True)
    told = [Told(peer(2), sequence=1), Told(peer(1)), Told(peer(2)), Told(peer(1), incarnation=2)]
    for one in told:
        rig.tell(one.header.origin, one)
    rig.machine.advance((EPOCH + 5) * SPAN, rig.now)
    [event] = [event for event in rig.events(EpochGathered) if event.rumours]
    assert event.epoch == EPOCH and all(parts == tuple(told[0].parts) for _, parts in event.rumours)
    said = [(rumour.origin, rumour.incarnation, rumour.sequence) for rumour, _ in event.rumours]
    assert said == sorted(said) and len(said) == 4
    assert gathered(Rig()) == {}


def test_payloads_are_kept_until_their_epoch_has_settled_and_then_as_there_is_room():
    rig = Rig(gather=True, retain=30)
    for sequence in range(3):
        rig.tell(peer(1), Told(peer(1), sequence=sequence))
    assert rig.machine.counts["room"] == 0
    rig.tell(peer(2), Told(peer(2)))
    assert rig.machine.counts["room"] == 1, "applied or not, the epoch will need them"
    assert [event.code for event in rig.events(Notice)] == ["GD-507"]
    rig.machine.advance((EPOCH + 5) * SPAN, rig.now)
    assert len(rig.machine._store) == 3
    rig.tell(peer(2), Told(peer(2), epoch=EPOCH + 5))
    assert rig.machine.counts["room"] == 1 and len(rig.machine._store) == 3
    rig.machine.advance((EPOCH + 14) * SPAN, rig.now)
    assert len(rig.machine._store) == 1


def test_lacking_payload_is_fetched_and_its_epoch_waits_for_it():
    one, other = Told(peer(1)), Told(peer(2))
    rig = gathering(one, other)
    rig.wait(2.0)
    asked = {want.name for _, message in rig.take(Graft) for want in message.wants}
    assert asked == {one.name, other.name}
    rig.machine.advance((EPOCH + 6) * SPAN, rig.now)
    assert EPOCH not in gathered(rig) and rig.machine._epochs.first == EPOCH
    rig.tell(peer(1), one)
    assert not rig.events(RumourReceived), "that is no news"
    assert rig.machine._epochs.first == EPOCH
    rig.tell(peer(3), other)
    assert gathered(rig)[EPOCH] == [tuple(one.parts), tuple(other.parts)]
    assert rig.machine._epochs.first == EPOCH + 2


def test_wait_for_a_payload_that_no_peer_has_is_bounded():
    rig = gathering(Told(peer(1)))
    rig.machine.advance((EPOCH + 4 + MAX_HELD) * SPAN, rig.now)
    assert EPOCH not in gathered(rig)
    rig.machine.advance((EPOCH + 5 + MAX_HELD) * SPAN, rig.now)
    assert gathered(rig)[EPOCH] == [()]


def test_payload_of_a_void_origin_is_not_awaited():
    rig = gathering(Told(peer(1)))
    rig.say(peer(2), Told(peer(1), parts=[b"else"]).header)
    rig.machine.advance((EPOCH + 5) * SPAN, rig.now)
    assert gathered(rig)[EPOCH] == []


def test_payload_already_here_is_not_fetched():
    told = Told(peer(1))
    giver, rig = Rig(gather=True), Rig(gather=True)
    for each in (giver, rig):
        each.tell(peer(1), told)
    rig.events()
    rig.machine.hold()
    assert rig.machine.adopt(giver.machine.summary(), rig.now) and not rig.events(RumourReceived)
    rig.machine.advance((EPOCH + 5) * SPAN, rig.now)
    assert gathered(rig)[EPOCH] == [tuple(told.parts)]


# -- malformed summaries ----------------------------------------------------------------------------------------------


def test_summary_survives_its_encoding_and_is_bounded():
    net = ready()
    data = first(net).machine.summary()
    assert isinstance(read(memoryview(data)), Summary)
    assert read(data, verify=lambda *_: False) is None
    assert read(data, span=50) is None
    assert read(bytes(5 << 20)) is None


@settings(max_examples=60)
@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_bytes_are_taken_or_refused(garbage, place):
    net = ready.kept = getattr(ready, "kept", None) or ready(2)
    data = first(net).machine.summary()
    for bad in (garbage, data[:place] + garbage + data[place + len(garbage) :]):
        found = read(bad, verify=verify)
        assert found is None or isinstance(found, Summary)


def told(count=1, **kw):
    return [Told(peer(1), epoch=0, sequence=number, **kw).header for number in range(count)]


def summed_up(inside, *proofs):
    return msgspec.msgpack.encode(Summary(0, (), tuple(inside), tuple(map(tuple, proofs))))


CHANGED = Told(peer(1), epoch=0, parts=[b"else"]).header
LARGE = Told(peer(1), epoch=0, parts=[bytes(1001)]).header
LIVES = [Told(peer(1), epoch=0, incarnation=number).header for number in range(1, MAX_LIVES + 2)]


@pytest.mark.parametrize(
    "summary",
    [
        summed_up(told() * 9),
        summed_up([*told(), CHANGED]),
        summed_up(LIVES),
        summed_up([LARGE]),
        summed_up([], [*told(), LARGE]),
        summed_up([], [*told(), *told()]),
        summed_up([], [*told(), CHANGED], [*told(), CHANGED]),
        summed_up(told(2)[1:], [*told(), CHANGED]),
        summed_up([], [*told(), Told(peer(2), epoch=0).header]),
        summed_up([], [*told(), Told(peer(1), epoch=1).header]),
    ],
    ids=[
        "one again and again",
        "two of one number",
        "too many lives",
        "too large",
        "proof too large",
        "proof of one",
        "proof twice",
        "inside and void",
        "proof of two origins",
        "proof of two epochs",
    ],
)
def test_impossible_summary_is_refused_before_a_signature_is_verified(summary):
    looked = []
    assert read(summary, verify=lambda *which: looked.append(which) or True) is None
    assert not looked


def test_possible_summary_is_taken_and_each_signature_verified_once():
    looked = []
    other = Told(peer(2), epoch=0).header
    summary = summed_up([*told(16), *LIVES[1:-1], other], [Told(peer(3), epoch=0, weight=w).header for w in (0.1, 0.2)])
    assert isinstance(read(summary, verify=lambda *which: looked.append(which) or True), Summary)
    assert len(looked) == len(set(looked)) == 16 + MAX_LIVES - 1 + 1 + 2


def test_summary_of_an_overfull_epoch_is_refused(monkeypatch):
    monkeypatch.setattr(state_summary, "MAX_RUMOURS", 3)
    assert isinstance(read(summed_up(told(3))), Summary) and read(summed_up(told(4))) is None


def test_refused_summary_changes_nothing():
    net = ready()
    host = net.start(9)
    assert not host.machine.adopt(b"none", net.now)
    to_come = read(first(net).machine.summary())
    assert to_come is not None
    later = msgspec.structs.replace(to_come, first=0xFFFF_FFFF, inside=())
    assert not host.machine.adopt(msgspec.msgpack.encode(later), net.now)
    with pytest.raises(LocalProtocolError):
        host.machine.summary()
    assert host.id == peer(9)
