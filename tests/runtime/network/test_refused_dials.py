"""Dials that the other side refuses, seeds that all refuse, and copies of an identity."""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gossipdp.errors import GossipdpError, RefusedError
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.duplicate_identity import AHEAD, CopyError, OvertakenError, judge
from gossipdp.runtime.network.events import CopyMet, DialFailed, HandshakeRefused
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.incarnation import count_from, draw_start, next_incarnation, started_at
from gossipdp.runtime.network.refusals import TIMES, Refusals
from gossipdp.runtime.network.signed_hello import ListenerHello
from tests.runtime.network.transports import PING, Net, answered, at, dialler, local_peer, name


def test_wrong_secret_is_gd_201_on_both_sides(net: Net) -> None:
    a, b = net.peer(secret=NetworkSecret.generate()), net.peer()
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    failed = net.events(a, DialFailed)[0]
    assert (failed.peer, failed.address, failed.code) == (name(b), at(b), "GD-201")
    assert "network secret differs" in failed.reason
    refused = net.events(b, HandshakeRefused)[0]
    assert refused.code == "GD-201"
    assert refused.address in ("", "127.0.0.1")
    assert a.links() == b.links() == []
    assert a.counters.handshakes["GD-201"] == 1


def test_proxy_without_its_peer_ends_no_newcomer(net: Net) -> None:
    """It accepts, finds no peer behind it and closes, as a forwarded port does whose peer is not up."""
    a = net.peer()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        address = f"127.0.0.1:{proxy.getsockname()[1]}"
        refusals = Refusals([address])

        def failed() -> list[DialFailed]:
            with suppress(BlockingIOError):
                proxy.accept()[0].close()
            return net.events(a, DialFailed)

        for _ in range(TIMES + 1):
            net.until(lambda: a.send(b"", address, Lane.CONTROL, PING))
            net.until(failed)
            (event,) = net.events(a, DialFailed)
            assert event.code == "GD-101" and "without an answer: probably a proxy" in event.reason
            assert event.do.startswith("start the peer behind the proxy")
            assert refusals.failed(event.address, event.code, event.reason, ours=event.ours) is None
            net.forget()


def test_refusal_names_an_address_that_the_next_connection_has_too(net: Net) -> None:
    b = net.peer()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    hello = b"\x04\xc8\x05HELLO\x01\x00" + bytes(192)  # a box that no key opens
    for connections in (1, 2):
        with socket.create_connection(("127.0.0.1", b.port)) as stranger:
            stranger.sendall(greeting)
            net.settle(0.05)
            stranger.sendall(hello)
            net.until(lambda: len(net.events(b, HandshakeRefused)) == connections)  # noqa: B023
    assert {(event.address, event.code) for event in net.events(b, HandshakeRefused)} == {("127.0.0.1", "GD-201")}


@pytest.mark.parametrize(
    ("change", "words"),
    [({"network": "other"}, ("network 'other'", "'tiny'")), ({"run": bytes(16)}, ("run 00000000", "00010203"))],
)
def test_other_network_or_run_is_gd_203_and_readable_on_both_sides(
    net: Net, change: dict[str, Any], words: tuple[str, str]
) -> None:
    a, b = net.peer(**change), net.peer()
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    failed, refused = net.events(a, DialFailed)[0], net.events(b, HandshakeRefused)[0]
    assert failed.code == refused.code == "GD-203"
    for word in words:
        assert word in failed.reason
        assert word in refused.reason
    assert a.links() == b.links() == []


def test_banned_key_is_gd_204_on_both_sides(net: Net) -> None:
    a = net.peer()
    b = net.peer(banned={name(a)})
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    failed = net.events(a, DialFailed)[0]
    assert (failed.code, failed.ours) == ("GD-204", False)
    assert net.events(b, HandshakeRefused)[0] == HandshakeRefused(
        "127.0.0.1", "GD-204", "a peer dialled in whose key is banned or not allowed here"
    )
    assert b.links() == []
    c = net.peer()
    net.link(c, b)


def test_peer_that_is_not_allowed_is_gd_204_whichever_side_dials(net: Net) -> None:
    a, c = net.peer(), net.peer()
    b = net.peer(allowed={name(c)})
    net.link(c, b)
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    assert net.events(a, DialFailed)[0].code == net.events(b, HandshakeRefused)[0].code == "GD-204"
    net.forget()
    b.send(name(a), at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(b, DialFailed))
    failed = net.events(b, DialFailed)[0]
    assert failed.code == "GD-204" and "[safety] allow of this host does not name it" in failed.reason
    assert a.links() == [] and len(b.links()) == 1


def test_banned_peer_is_not_linked_by_its_own_listener_either(net: Net) -> None:
    a = net.peer()
    b = net.peer(banned={name(a)})
    b.send(b"", at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(b, DialFailed))
    failed = net.events(b, DialFailed)[0]
    assert (failed.code, failed.ours) == ("GD-204", True) and a.links() == b.links() == []


def test_cloned_identity_is_gd_205(net: Net) -> None:
    identity = Identity.generate()
    a, b = net.peer(identity), net.peer(identity)
    a.send(b"", at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    assert net.events(a, DialFailed)[0].code == net.events(b, HandshakeRefused)[0].code == "GD-205"
    assert a.start != b.start and a.links() == b.links() == []
    assert {event.start for event in net.events(a, CopyMet)} == {b.start}  # which needs the key to say
    assert {event.start for event in net.events(b, CopyMet)} == {a.start}


def test_address_that_leads_back_to_the_dialler_is_no_copy_of_it(net: Net) -> None:
    a = net.peer()
    a.send(b"", at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    assert net.events(a, DialFailed)[0].code == "GD-101" and not net.events(a, CopyMet)


def test_dialler_that_only_claims_this_peers_identity_is_no_copy_of_it(net: Net) -> None:
    me, liar = Identity.generate(), Identity.generate()
    a = net.peer(me)
    said = signed_hello.unpack(dialler(me).hello())
    assert isinstance(said, signed_hello.Hello)
    with pytest.raises(RefusedError, match="GD-202"):
        ListenerHello(local_peer(me), liar.curve.public).hello(said)
    hello = dialler(me)
    there = ListenerHello(local_peer(liar), me.curve.public)
    answer = answered(hello, there)
    with pytest.raises(RefusedError, match="GD-202"):
        hello.answer(msgspec.structs.replace(answer, id=me.id))
    assert hello.peer == b"" and not net.events(a, CopyMet)


EARLY, LATE = draw_start(1_000_000.0), draw_start(1_000_001.0)


@pytest.mark.parametrize(
    ("mine", "copy", "end"),
    [
        ((5, EARLY), (5, LATE), None),
        ((6, EARLY), (5, LATE), None),
        ((5, EARLY), (6, LATE), OvertakenError),
        ((5, LATE), (5, EARLY), CopyError),
        ((6, LATE), (5, EARLY), CopyError),
        ((5, LATE), (6, EARLY), CopyError),
        ((5, EARLY), (5, EARLY), CopyError),
    ],
)
def test_later_daemon_ends__and_one_taken_for_its_past_starts_anew(
    mine: tuple[int, bytes], copy: tuple[int, bytes], end: type[GossipdpError] | None
) -> None:
    error = judge(mine, copy, "192.0.2.1:4710")
    assert (error and type(error)) == end
    if error is not None:
        assert error.code == "GD-205" and "192.0.2.1:4710" in error.seen and "home of its own" in error.do
        assert "1970-01-12 13:46:4" in error.seen


def test_overtaken_daemon_counts_on_from_far_above_the_copy(tmp_path: Path) -> None:
    error = judge((5, EARLY), (9, LATE), "192.0.2.1:4710")
    assert isinstance(error, OvertakenError)
    count_from(tmp_path, error.incarnation)
    assert next_incarnation(tmp_path) == 9 + AHEAD + 1


def test_starts_compare_by_their_time() -> None:
    marks = [draw_start(at) for at in (0.0, 5.0, 1.8e9, 4.2e9)]
    assert marks == sorted(marks) and [started_at(mark) for mark in marks] == [0, 5, 1_800_000_000, 4_200_000_000]
    assert len({draw_start(7.0) for _ in range(20)}) == 20


A, B = "10.0.0.1:4710", "host2:4710"


@pytest.mark.parametrize(("code", "exit_code"), [("GD-204", 5), ("GD-203", 6), ("GD-302", 6)])
def test_all_addresses_refuse_several_times__error_names_each(code: str, exit_code: int) -> None:
    refusals = Refusals([A, B])
    told = [refusals.failed(address, code, "said no") for _ in range(TIMES) for address in (A, B)]
    assert told[:-1] == [None] * (2 * TIMES - 1)
    error = told[-1]
    assert error is not None and (error.code, error.exit_code) == (code, exit_code)
    assert error.seen == f"{code} {A}: said no; {code} {B}: said no" and error.do


@pytest.mark.parametrize("code", ["GD-101", "GD-104", "GD-201", "GD-205"])
def test_failure_that_may_pass_is_no_refusal(code: str) -> None:
    refusals = Refusals([A, B])
    for _ in range(2 * TIMES):
        assert refusals.failed(A, "GD-204", "said no") is None
        assert refusals.failed(B, code, "no answer") is None
        assert refusals.failed(B, "GD-204", "said no") is None


def test_member_met_or_address_not_given__no_error() -> None:
    refusals, nobody = Refusals([A]), Refusals()
    refusals.met_member()
    for _ in range(2 * TIMES):
        assert refusals.failed(A, "GD-204", "said no") is None
        assert nobody.failed(B, "GD-204", "said no") is None


def test_refusal_by_this_peers_own_lists_does_not_count() -> None:
    refusals = Refusals([A])
    assert [refusals.failed(A, "GD-204", "kept out here", ours=True) for _ in range(2 * TIMES)] == [None] * (2 * TIMES)
