"""A fault inside the handler of any message ends one exchange or transfer. Every invariant holds afterwards."""

from collections import Counter
from random import Random

import pytest

from gossipdp.protocol.events import MessageFailed, Struck
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.peer import Peer
from simulations.simulator.cluster import Cluster
from tests.simulations.simulator.small_cluster import small

SHARE = 0.05
"""of what a handler puts out"""


class Faults:
    """Raises instead of a share of what handlers put out, until it is stopped.

    A handler may have changed a part of its state by then.
    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random, self.on, self._inside = Random(f"faults/{seed}"), True, False
        self.raised: Counter[str] = Counter()
        handle = Peer._handle

        def handled(peer, message, *rest):
            self._inside, self._kind = True, type(message).__name__
            try:
                return handle(peer, message, *rest)
            finally:
                self._inside = False

        monkeypatch.setattr(Peer, "_handle", handled)
        for name in ("send", "ask", "emit"):
            monkeypatch.setattr(Outputs, name, self._faulty(getattr(Outputs, name)))

    def _faulty(self, put):
        def instead(outputs, *what, **options):
            if self.on and self._inside and self.random.random() < SHARE:
                self.raised[self._kind] += 1
                raise ZeroDivisionError("a fault")
            return put(outputs, *what, **options)

        return instead


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 60))])
def test_faults_in_handlers_end_exchanges_and_break_no_invariant(seed, monkeypatch):
    faults = Faults(seed, monkeypatch)
    cluster = Cluster(3000 + seed, small(script=()))
    met, struck = Counter(), []

    def heard(host, event):
        if isinstance(event, MessageFailed):
            met[event.kind] += 1
        if isinstance(event, Struck):
            struck.append(event)

    cluster.listeners.append(heard)
    network = cluster.network
    end = cluster.plan.forming + cluster.plan.chaos
    network.at(end, "faults end", None, lambda: setattr(faults, "on", False))
    cluster.run()
    assert met == faults.raised and len(met) > 3 and not struck
