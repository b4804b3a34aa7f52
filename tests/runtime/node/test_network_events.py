"""What the operator reads of the peer's address when members find that they can dial it, or cannot."""

from types import SimpleNamespace
from typing import Any

import pytest

from gossipdp.protocol.wire.messages import Member, State, through
from gossipdp.runtime.network.dial_causes import LEADS_BACK, Cause, DialFault
from gossipdp.runtime.network.events import Dialable, DialFailed, LinkUp, RunLearned
from gossipdp.runtime.network.refusals import Refusals
from gossipdp.runtime.node.network_events import NetworkEvents
from gossipdp.runtime.observability.unanswered import Unanswered

HERE, PRIVATE = "203.0.113.7:4710", "10.0.0.4:4710"
REFUSED = Cause("GD-101", "refused").at(HERE)
SAYS_SO = Cause("GD-101", "refused", LEADS_BACK).at(HERE)
OWN = SAYS_SO._replace(detail="in other words", fault=DialFault.LEADS_BACK)
LISTENS = Cause("GD-101", "in other words", fault=DialFault.LISTENS).at(HERE)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Dialable((), (HERE,), 6), f"members could not reach {HERE}"),
        (Dialable((PRIVATE,), (HERE,), 6), f"members could not reach {HERE}"),
        (Dialable((HERE,), (), 0), "members have dialled it there"),
        (Dialable((HERE,), (), 0, (HERE,)), "members see this peer come from there, and have dialled it"),
    ],
)
def test_status_says_why_the_address_has_changed(event: Dialable, why: str) -> None:
    chosen: list[str] = []
    advertised: list[tuple[str, ...]] = []
    context: Any = SimpleNamespace(
        peer=SimpleNamespace(advertise=lambda addresses, now: advertised.append(addresses)),
        notices=SimpleNamespace(notice=lambda *about: None),
        records=None,
        status=SimpleNamespace(unanswered=None, choose=lambda why, **options: chosen.append(why)),
        incarnation=1,
    )
    events = network_events(context)
    events.handle(event, 1.0)
    assert chosen == [why] and advertised == [event.addresses]


def network_events(context: Any, dial: Any = None) -> NetworkEvents:
    return NetworkEvents(
        context,
        Refusals(()),
        start=b"",
        answer_invite=lambda shown, why_not: None,
        dial=dial,
        wall=lambda: 0.0,
    )


@pytest.mark.parametrize("ready", [False, True])
def test_run_that_a_member_tells_is_remembered_once_the_model_is_here(ready: bool) -> None:
    """A wrong run would otherwise keep this home out of its network at every later start."""
    remembered: list[bytes] = []
    context: Any = SimpleNamespace(
        peer=SimpleNamespace(view=SimpleNamespace(ready=ready)),
        notices=None,
        records=SimpleNamespace(learn_run=remembered.append),
        status=SimpleNamespace(unanswered=None),
        incarnation=1,
    )
    events = network_events(context)
    events.handle(RunLearned(b"r" * 16, b"p" * 32), 1.0)
    assert remembered == [b"r" * 16] * ready
    for _ in range(2):
        events.model_ready()
        assert remembered == [b"r" * 16]


class Found:
    """Looks for members, and keeps what the operator is told."""

    def __init__(self, members: dict[bytes, Any] | None = None) -> None:
        self.notices: list[str] = []
        self.unanswered = Unanswered()
        view = SimpleNamespace(left=lambda address: False, members=members or {}, heard=lambda peer: peer != b"hearsay")
        context: Any = SimpleNamespace(
            peer=SimpleNamespace(view=view, link_down=lambda *about: None),
            notices=SimpleNamespace(notice=lambda code, *about, **options: self.notices.append(code)),
            status=SimpleNamespace(unanswered=self.unanswered),
            records=None,
            incarnation=1,
        )
        self.events = network_events(context)


@pytest.mark.parametrize(
    ("peer", "told"),
    [
        pytest.param(b"met", [0, 0, 0, 1, 0, 0], id="a member that was met"),
        pytest.param(b"hearsay", [1, 1, 1, 1, 0, 1], id="one that was not"),
    ],
)
def test_dials_in_vain_at_a_member_are_told_once_it_is_out_of_reach_for_longer_than_a_restart(
    peer: bytes, told: list[int]
) -> None:
    member = SimpleNamespace(id=peer, name="b", addresses=(PRIVATE, HERE))
    found, seen = Found({peer: member}), []
    failed, up = DialFailed(b"", HERE, (REFUSED,)), LinkUp(peer, HERE, False, 1)
    for event, now in [(failed, 0.0), (failed, 10.0), (failed, 59.0), (failed, 60.0), (up, 65.0), (failed, 70.0)]:
        found.events.handle(event, now)
        seen.append(len(found.notices))
        found.notices.clear()
    assert seen == told


@pytest.mark.parametrize(("cause", "told"), [(REFUSED, ["GD-101"]), (LISTENS, [])])
def test_peer_that_began_to_listen_just_now_is_no_trouble(cause: Cause, told: list[str]) -> None:
    found = Found()
    found.events.handle(DialFailed(b"", HERE, (cause,)), 1.0)
    assert found.notices == told


@pytest.mark.parametrize(
    ("peer", "causes", "told"),
    [
        pytest.param(b"", (OWN,), [], id="an address of an invite is this peer's own"),
        pytest.param(b"b", (OWN,), ["GD-101"], id="a member cannot be dialled from here"),
        pytest.param(b"", (REFUSED, OWN), ["GD-101"], id="another one is silent"),
        pytest.param(b"", (SAYS_SO,), ["GD-101"], id="another host only says so"),
    ],
)
def test_address_that_leads_back_is_a_notice_if_a_member_is_out_of_reach(
    peer: bytes, causes: tuple[Cause, ...], told: list[str]
) -> None:
    found = Found()
    found.events.handle(DialFailed(peer, HERE, causes), 1.0)
    assert found.notices == told
    assert [dial.causes for dial in found.unanswered.recent(1.0).values()] == [causes], (
        "a joiner without others is told"
    )


def test_relayed_link_is_logged_with_its_relay_and_the_peer_is_dialled_directly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer, relay, dialled = b"p" * 32, b"r" * 32, list[Any]()
    members = {
        peer: Member(peer, "h2", "10.0.0.2:1", 1, 0, State.ALIVE, others=(through(relay, peer),)),
        relay: Member(relay, "r1", "10.0.0.1:1", 1, 0, State.ALIVE),
    }
    context: Any = SimpleNamespace(
        peer=SimpleNamespace(view=SimpleNamespace(members=members)),
        notices=None,
        records=None,
        status=SimpleNamespace(unanswered=None),
        incarnation=1,
    )
    caplog.set_level("INFO")
    network_events(context, lambda *about: dialled.append(about)).handle(LinkUp(peer, "", True, 1, relay), 1.0)
    assert caplog.messages == ["link to h2 (70707070) through r1 (72727272) (inbound)"]
    assert dialled == [(peer, ("10.0.0.2:1",))]


def test_relayed_dial_in_vain_is_a_line_and_no_notice(caplog: pytest.LogCaptureFixture) -> None:
    peer, relay, lost = b"p" * 32, b"r" * 32, list[Any]()
    context: Any = SimpleNamespace(
        peer=SimpleNamespace(view=SimpleNamespace(members={}), link_down=lambda *about: lost.append(about)),
        notices=None,
        records=None,
        status=SimpleNamespace(unanswered=None),
        incarnation=1,
    )
    caplog.set_level("INFO")
    cause = Cause("GD-101", "not carried by the relay", "it has not asked the relay")
    network_events(context).handle(DialFailed(peer, through(relay, peer), (cause,)), 1.0)
    told = "cannot reach 70707070 through 72727272: not carried by the relay: it has not asked the relay"
    assert caplog.messages == [told] and [each[0] for each in lost] == [peer]
