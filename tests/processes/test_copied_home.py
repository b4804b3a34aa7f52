"""Two hosts made from one image, with one peer's home in it."""

import shutil
from collections.abc import Callable

import pytest

from gossipdp.errors import RETRY
from gossipdp.runtime.network.duplicate_identity import AHEAD, CopyError
from tests.processes.running import Network, until

pytestmark = pytest.mark.processes


def test_second_daemon_of_one_identity_is_refused_and_told_why__and_the_first_goes_on(
    network: Callable[..., Network],
) -> None:
    three = network(3)
    three.settle_in()
    founder, first, copy = three.hosts
    shutil.copy(first.home / "identity.key", copy.home)
    for host in (founder, first):
        host.start_daemon()
        host.start_training()
    until("two exchange", lambda: first.exchanges() >= 2, [founder, first])
    copy.start_daemon()
    until("the copy is told why", lambda: "GD-205" in copy.text() and "GD-205" in founder.text(), three.hosts)
    assert "give each host a home of its own" in copy.text()
    before = first.exchanges()
    until("the first goes on", lambda: first.exchanges() >= before + 5, three.hosts)
    assert copy.status()["state"] == "joining" and founder.status()["members"]["alive"] == 2
    assert not founder.ends() and not first.ends()


@pytest.mark.long
@pytest.mark.parametrize("others", [1, 2])
def test_copy_with_a_higher_start_ends_all_the_same__and_the_first_is_started_anew(
    others: int, network: Callable[..., Network]
) -> None:
    """A home that was copied whole. At its first start the copy looks like the first host's next life. With one other
    member, only that member can tell the two of each other."""
    hosts = network(2 + others)
    hosts.settle_in()
    *live, copy = hosts.hosts
    founder, first = live[0], live[-1]
    for host in live:
        host.start_daemon()
        host.start_training()
    for host in live:
        until("all exchange", lambda host=host: host.exchanges() >= 2, live)
    for name in ("identity.key", "incarnation", "run"):
        shutil.copy(first.home / name, copy.home)
    ends, overtaken = copy.start_daemon(), first.daemon
    assert overtaken is not None
    assert ends.ended() == CopyError.exit_code and overtaken.ended() == RETRY
    assert "this identity is already live elsewhere" in copy.text() and copy.text().count("start 2") == 1
    assert "a copy of this home was live" in first.text()
    first.start_daemon()
    until("the first goes on", lambda: first.exchanges() >= 3, live)
    assert first.status()["incarnation"] == 2 + AHEAD + 1
    until("others know it", lambda: founder.status()["members"]["alive"] == 1 + others, [founder])
    assert not any(host.ends() for host in live[:-1]) and first.training is not None and first.training.code is None
