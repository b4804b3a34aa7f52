"""The invariants notice peers that are broken on purpose."""

import re
from dataclasses import replace

import numpy as np
import pytest

from gossipdp.algorithms.ledger import Ledger
from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import kernels
from gossipdp.codecs import moments as codec
from gossipdp.protocol.jobs import Frozen
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.pairwise.initiator import Initiator
from gossipdp.protocol.transfer.moments_holder import MomentsHolder
from simulations.simulator import agreement
from simulations.simulator.cluster import Cluster, Plan, run_seed
from simulations.simulator.faults import Fault
from simulations.simulator.invariants import Books
from simulations.simulator.network import Conditions
from tests.simulations.faulty_responders import forget_mixed_chunks, mix_less_than_the_responder
from tests.simulations.simulator.small_cluster import fails, small


@pytest.mark.parametrize("dials", [True, False])
def test_members_believed_dead_after_a_heal_are_noticed(dials):
    """Two halves of two peers are cut for longer than a suspicion lasts. Then a peer knows a seed in the other half
    only if it dials it."""

    class Forgetful(Cluster):
        def _config(self):
            config = super()._config()
            again = config.membership.reconnect_interval if dials else 1e9
            return replace(config, membership=replace(config.membership, reconnect_interval=again))

    cut = (Fault(at=8.0, kind="halves", hosts=(2, 3), lasts=20.0),)
    plan = Plan(peers=4, size=300, conditions=Conditions(), every=8, window=2, script=cut, chaos=16.0, apart_rounds=100)
    if dials:
        return Forgetful(3, plan).run()
    with pytest.raises(AssertionError, match=r"I8 p., p. took p. for dead"):
        Forgetful(3, plan).run()


def test_replicas_that_drift_apart_are_noticed(monkeypatch):
    """The fourth act notices a network that claims to average and does not."""
    monkeypatch.setattr(Pairwise, "_mix_acknowledged", lambda self, job: self._refuse(job.key, "payload"))
    monkeypatch.setattr(Pairwise, "_decode_and_mix", lambda self, job: self._refuse(job.key, "payload"))
    monkeypatch.setattr(Books, "heard", lambda self, host, event: None)
    monkeypatch.setattr(Cluster, "_check_rates", lambda self, since, now: None)
    with pytest.raises(AssertionError, match=r"I4: squared distance"):
        run_seed(5, plan=small(conditions=Conditions(), agree=True))


def test_mixing_without_pending_is_noticed(monkeypatch):
    original = Ledger.pending
    monkeypatch.setattr(Ledger, "pending", lambda self, chunk: np.zeros_like(original(self, chunk)))
    assert "x + pending - a" in fails(range(2))


def test_initiator_mixing_less_than_the_responder_is_noticed(monkeypatch):
    mix_less_than_the_responder(monkeypatch)
    assert "the sum of two anchors moved" in fails(range(2))


def test_responder_that_forgets_what_it_mixed_is_noticed(monkeypatch):
    forget_mixed_chunks(monkeypatch)
    assert "I2" in fails()


def test_initiator_that_forgets_its_doubts_is_noticed(monkeypatch):
    def lose(self, now):
        self._exhausted, self._result = True, "lost"
        self._drop([number for number, chunk in self._open.items() if not chunk.mixing])
        self._end_if_done(now)

    monkeypatch.setattr(Initiator, "lose", lose)
    eight = tuple(Fault(at=7.0 + 1.5 * n, kind="isolated", hosts=(n % 3,), lasts=7.0, busy=True) for n in range(8))
    # No doubts are counted, so chunks stay one-sided between live peers.
    assert "I2" in fails(range(30), script=eight, conditions=Conditions(latency=0.15, loss=0.3, job=0.04))


def test_outer_step_that_counts_progress_twice_is_noticed(monkeypatch):
    original = Ledger.outer_step

    def outer_step(self, chunk, lr, momentum, applied, *more):
        before = self.a[self.span(chunk)].copy()
        result = original(self, chunk, lr, momentum, applied, *more)
        self.a[self.span(chunk)] += self.a[self.span(chunk)] - before
        return result

    monkeypatch.setattr(Ledger, "outer_step", outer_step)
    assert "outer step" in fails(range(2))


def test_moments_that_no_process_reported_are_noticed(monkeypatch):
    plan = replace(Plan.draw(4), peers=3, moments=3)
    assert run_seed(4, plan=plan).inherited == 2
    original = MomentsHolder.hold

    def hold(self, moments, now):
        nothing = [bytes(len(chunk.payload)) for chunk in moments.chunks]
        chunks = tuple(Frozen(payload, codec.digest(payload)) for payload in nothing)
        original(self, replace(moments, chunks=chunks), now)

    monkeypatch.setattr(MomentsHolder, "hold", hold)
    with pytest.raises(AssertionError, match="that no process reported"):
        run_seed(4, plan=plan)


def test_checks_that_miss_more_than_one_block_are_noticed(monkeypatch):
    verdict = kernels.verdict

    def blind(*given):
        verdict(*given)
        given[9][:] = 0
        return 0

    monkeypatch.setattr(kernels, "verdict", blind)
    assert "moved elsewhere than to its partner" in fails()


def test_table_that_grows_is_noticed(monkeypatch):
    original = Averaging._retire

    def retire(self, now):
        self.seen = [*getattr(self, "seen", ()), *([] if self._active is None else [self._active.terms.exchange])]
        original(self, now)

    monkeypatch.setattr(Averaging, "_retire", retire)
    assert re.search(r"I9 p\d: Averaging\.seen holds \d+", fails(range(1)))


def test_distance_that_falls_only_at_the_end_is_noticed(monkeypatch):
    cluster = Cluster(5, small(conditions=Conditions(), script=(), agree=True))
    looks = iter(range(10_000))
    monkeypatch.setattr(agreement, "disagreement", lambda network: 1.0 if next(looks) < 20 else 1e-5)
    with pytest.raises(AssertionError, match=r"I4: squared distance does not fall geometrically"):
        cluster.run()


def test_peer_without_exchanges_after_its_faults_is_noticed(monkeypatch):
    original = Averaging.want

    def want(self, exchanges, now, *rest):
        original(self, exchanges if now < 20.0 else 0, now, *rest)

    monkeypatch.setattr(Averaging, "want", want)
    assert re.search(r"I7: 0 exchanges ended in 6\.0 s of \d+ rounds", fails(range(1), script=()))
