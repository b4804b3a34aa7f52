"""Shows an invite for one host to members, and gets the network's secret from the first that lets this host in.

It blocks, and needs no daemon. CURVE encrypts both messages for the network on one side and this host on the other.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from typing import Final

from gossipdp.error_codes import ADVICE
from gossipdp.errors import GossipdpError, RefusedError, RemoteProtocolError, UnreachableError
from gossipdp.protocol.admission.statements import receipt
from gossipdp.protocol.wire.messages import PROTOCOL_VERSION, printable
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.dial_causes import Cause, DialFault, look
from gossipdp.runtime.network.host_port import split_address
from gossipdp.runtime.network.identity import CurveKeys, Identity, NetworkSecret, digest_of
from gossipdp.runtime.network.invite import HostInvite
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.proxy import Proxy, Reached, Tunnels, probe
from gossipdp.runtime.network.resolver import Target, looked_up, unresolved_target
from gossipdp.runtime.network.sockets import Sockets

__all__ = ["PATIENCE", "redeem"]

PATIENCE: Final = 60.0
"""seconds in which a member must answer; the network may be about to start"""
PAUSE: Final = 1.0
"""seconds between two rounds over all addresses"""
ANSWER: Final = 10.0
"""seconds for the answer of one member"""
PROXY_STARTS: Final = 8.0
"""seconds in which a proxy must begin to work: `ssh -D` may have been started just now"""


def redeem(
    invite: HostInvite,
    identity: Identity,
    *,
    proxy: Proxy | None = None,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> NetworkSecret:
    """The network's secret, from the first member that lets this host in.

    Args:
        identity: of this host.
        proxy: through which to dial; None: directly.
        patience: seconds after which no further round over the addresses begins.
        clock: monotonic time in seconds.
        wait: sleeps for a number of seconds.

    Raises:
        RefusedError: GD-202, GD-208 or GD-209, members answered, and none lets this host in.
        UnreachableError: GD-101, the proxy does not work, or no member answered.
    """
    end = clock() + patience
    if proxy is not None:
        _await_proxy(proxy, min(end, clock() + PROXY_STARTS), clock, wait)
    while True:
        refused: GossipdpError | None = None
        causes = [] if invite.seeds else ["the invite names no address"]
        for seed in invite.seeds:
            for found in _targets(seed) if proxy is None else [unresolved_target(seed)]:
                if isinstance(found, Cause):
                    causes.append(found.told())
                    continue
                try:
                    return _ask(invite, identity, found, proxy)
                except UnreachableError as error:
                    causes.append(error.cause)
                except GossipdpError as error:
                    refused = refused or error
        # A member that lacks a decision may refuse for a moment. The others may be about to start.
        if refused is not None and (refused.code == "GD-209" or not causes or clock() + PAUSE >= end):
            raise refused
        if not invite.seeds or clock() + PAUSE >= end:
            do = "check that a member runs at one of these addresses; if they have changed, ask for a new invite"
            cause = "no member at the addresses of the invite answers"
            raise UnreachableError("GD-101", cause, seen="; ".join(causes), do=do)
        wait(PAUSE)


def _await_proxy(proxy: Proxy, end: float, clock: Callable[[], float], wait: Callable[[float], None]) -> None:
    while (cause := probe(proxy, "", TransportLimits().connect)) is not None:
        if clock() + PAUSE >= end:
            raise UnreachableError(cause.code, cause.brief, seen=cause.detail, do=cause.do)
        wait(PAUSE)


def _targets(seed: str) -> Iterator[Target | Cause]:
    """The IP addresses of a seed, or why there is none."""
    found = looked_up(*split_address(seed))
    if isinstance(found, Cause):
        yield found.at(seed)
    else:
        yield from found


def _ask(invite: HostInvite, identity: Identity, target: Target, proxy: Proxy | None) -> NetworkSecret:
    """The secret, from the member at `target`."""
    limits = TransportLimits()
    if proxy is None:
        cause = look(target.text, False, limits.connect)
        if cause.fault is not DialFault.LISTENS:
            raise UnreachableError("GD-101", cause.at(target.text).told())
    proof = receipt(invite.decision, identity.id, invite.network, Identity(invite.key).sign).signature
    question = signed_hello.Redeem(PROTOCOL_VERSION, identity.id, invite.network, invite.decision, proof)
    sockets = Sockets(limits, CurveKeys(invite.curve, b""), identity.curve)
    tunnels = None if proxy is None else Tunnels(proxy, limits.connect)
    try:
        endpoint = target.endpoint if tunnels is None else _tunnelled(tunnels, target)
        frames = sockets.ask(endpoint, signed_hello.pack(question), ANSWER)
        if not frames:
            cause = look(target.text, True, limits.connect) if proxy is None else Cause("GD-101", "gave no answer")
            raise UnreachableError("GD-101", cause.at(target.text).told())
        answer = signed_hello.unpack(frames)
    except RemoteProtocolError as error:
        raise UnreachableError("GD-101", f"{target.text} answered out of order: {error}") from None
    finally:
        sockets.close()
        if tunnels is not None:
            tunnels.close()
    return _granted(invite, answer, target.text)


def _tunnelled(tunnels: Tunnels, target: Target) -> str:
    """The endpoint of a connection through the proxy."""
    tunnels.open(0, *split_address(target.text))
    select.select([tunnels], [], [], ANSWER)
    for found in tunnels.collect():
        if isinstance(found, Reached):
            return found.endpoint
        raise UnreachableError("GD-101", found.cause.at(target.text).told())
    raise UnreachableError("GD-101", f"{target.text}: the proxy gave no answer")


def _granted(invite: HostInvite, answer: signed_hello.ServiceMessage, address: str) -> NetworkSecret:
    if isinstance(answer, signed_hello.Refuse):
        seen, do = printable(answer.reason), ADVICE.get(answer.code, "ask for a new invite")
        raise RefusedError(answer.code, "the network does not let this host in", seen=seen, do=do)
    if not isinstance(answer, signed_hello.Granted):
        raise UnreachableError("GD-101", f"{address} answered out of order")
    secret = NetworkSecret(answer.value, {answer.generation: answer.secret})
    # A member that was put out may still hold old keys. What it says must be what the invite names.
    right = answer.generation == invite.generation and digest_of(answer.secret) == invite.digest
    if not right or secret.curve_server_keys().public != invite.curve:
        seen = f"the secret that {address} gave is not the one of the invite"
        raise RefusedError("GD-202", "another network answered to the invite", seen=seen)
    return secret
