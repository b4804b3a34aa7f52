"""Two hosts made from one image, with one peer's home in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from running import Network, until

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
    until("two exchange", lambda: first.exchanges() >= 2, 30, [founder, first])
    copy.start_daemon()
    until("the copy is told why", lambda: "GD-205" in copy.text() and "GD-205" in founder.text(), 20, three.hosts)
    assert "give each host a home of its own" in copy.text()
    before = first.exchanges()
    until("the first goes on", lambda: first.exchanges() >= before + 5, 20, three.hosts)
    assert copy.status()["state"] == "joining" and founder.status()["members"]["alive"] == 2
    assert not founder.ends() and not first.ends()
