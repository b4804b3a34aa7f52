"""The nemesis: each fault undoes its own harm and no other fault's."""

from simulations.simulator.cluster import Cluster
from simulations.simulator.faults import FOREVER, Fault
from simulations.simulator.nemesis import Nemesis
from simulations.simulator.network import Conditions, Network
from tests.simulations.simulator.small_cluster import small


class Bare:
    """Three hosts without daemons, and what a nemesis does to them: (time, host, what)."""

    def __init__(self, *script):
        self.network = Network(0, Conditions(), listen=lambda host, event: None)
        cluster = Cluster(0, small(script=()))
        for _ in range(3):
            self.network.add(cluster._config())
        self.founded, self.done = True, []
        self.nemesis = Nemesis(self, script)

    def crash(self, host, **how):
        self.done.append((self.network.now, host.index, "crash"))
        host.life += 1

    def restart(self, host):
        self.done.append((self.network.now, host.index, "restart"))

    def kill_trainer(self, host):
        self.done.append((self.network.now, host.index, "kill"))

    def train(self, host):
        self.done.append((self.network.now, host.index, "train"))

    def at(self, now, what):
        self.network.run(now)
        return what()


def carried(bare):
    """Pairs of hosts between which messages get through, one way."""
    hosts = bare.network.hosts
    pairs = [(one.index, other.index) for one in hosts for other in hosts if one is not other]
    return {pair for pair in pairs if pair not in bare.network.links._cuts}


def test_overlapping_cuts_each_last_their_own_time():
    first = Fault(at=1.0, kind="isolated", hosts=(0,), lasts=2.0)
    longer = Fault(at=2.0, kind="halves", hosts=(0, 1), lasts=7.0)
    oneway = Fault(at=2.5, kind="one-way", hosts=(2,), lasts=1.0)
    bare = Bare(first, longer, oneway, Fault(at=4.0, kind="flapping", hosts=(2,), lasts=1.6))
    seen = {now: bare.at(now, lambda: carried(bare)) for now in (0.5, 1.5, 2.2, 2.7, 3.2, 4.1, 4.5, 8.9, 9.1)}
    pairs = {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}
    assert seen[0.5] == seen[9.1] == pairs
    assert seen[1.5] == {(1, 2), (2, 1)}
    assert seen[2.2] == seen[2.7] == set(), "the first cut still isolates p0, the second cuts off p2"
    assert seen[3.2] == seen[4.1] == seen[4.5] == seen[8.9] == {(0, 1), (1, 0)}, "no other heal ends it"


def test_all_harm_ends_with_the_faults():
    bare = Bare(
        Fault(at=1.0, kind="flapping", hosts=(0,), lasts=8.0),
        Fault(at=1.0, kind="ring", hosts=(0, 1, 2), lasts=9.0),
        Fault(at=1.0, kind="storm", hosts=(0,), lasts=9.0),
        Fault(at=1.0, kind="slow", hosts=(0,), lasts=9.0),
    )
    bare.network.run(3.0)
    bare.nemesis.end()
    bare.nemesis.set_weather(Conditions(loss=0.01))
    cut = bare.network.links.cut(bare.network.hosts[:1], bare.network.hosts[1:2])
    bare.network.run(20.0)
    assert len(carried(bare)) == 4 and bare.network.conditions == Conditions(loss=0.01)
    assert [host.slowness for host in bare.network.hosts] == [1.0] * 3
    bare.network.links.heal(cut)
    bare.network.links.heal(cut)
    assert bare.network.links.whole and len(carried(bare)) == 6


def test_overlapping_slowness_and_storms_end_with_the_last():
    bare = Bare(
        Fault(at=1.0, kind="straggler", hosts=(0, 1), lasts=4.0, factor=3.0),
        Fault(at=2.0, kind="slow", hosts=(1,), lasts=1.0),
        Fault(at=2.0, kind="slow", hosts=(1,), lasts=2.0),
        Fault(at=1.0, kind="storm", hosts=(0,), lasts=2.0),
        Fault(at=2.0, kind="storm", hosts=(0,), lasts=4.0),
    )

    def pace():
        hosts = bare.network.hosts
        return [host.slowness for host in hosts], hosts[1].step_slowness, bare.network.conditions.loss

    seen = {now: bare.at(now, pace) for now in (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5)}
    assert seen[0.5] == seen[6.5] == ([1.0, 1.0, 1.0], 1.0, 0.0)
    assert seen[1.5] == seen[4.5] == ([3.0, 3.0, 1.0], 3.0, 0.5)
    assert seen[2.5] == seen[3.5] == ([3.0, 10.0, 1.0], 3.0, 0.5)
    assert seen[5.5] == ([1.0, 1.0, 1.0], 1.0, 0.5)


def test_faults_wait_until_the_network_is_founded():
    bare = Bare(Fault(at=1.0, kind="die", hosts=(0,), lasts=1.0))
    bare.founded = False
    bare.network.run(3.1)
    assert not bare.done
    bare.founded = True
    bare.network.run(6.0)
    assert [(host, what) for _, host, what in bare.done] == [(0, "kill"), (0, "train")]


def test_paused_host_leaves_after_its_pause_and_comes_back():
    """The same after the end of all faults, when nothing else would start it."""
    script = (
        Fault(at=8.0, kind="pause", hosts=(1,), lasts=9.0),
        Fault(at=9.0, kind="leave", hosts=(1,), lasts=0.5),
        Fault(at=10.0, kind="leave", hosts=(2,), lasts=0.5),
    )
    cluster = Cluster(3, small(script=script, chaos=6.0, conditions=Conditions()))
    seen = []
    cluster.network.trace = lambda record: seen.append((record.kind, record.host, record.at))
    cluster.run()
    told = {host: at for kind, host, at in seen if kind == "leave"}
    starts = {host: at for kind, host, at in seen if kind == "starts"}
    assert told[2] == 10.0 and told[1] >= 17.0
    assert 10.5 < starts[2] < 13.5 and 17.5 < starts[1] < 20.5


def test_founder_may_stay_away_once_others_have_the_model():
    script = (
        Fault(at=8.0, kind="leave", hosts=(0,), lasts=FOREVER),
        Fault(at=9.0, kind="join", hosts=(2,), lasts=FOREVER),
        Fault(at=12.0, kind="crash", hosts=(1,), lasts=0.5, disk=False),
    )
    cluster = Cluster(3, small(script=script, conditions=Conditions()))
    up = []
    cluster.listeners.append(lambda host, event: up.append(cluster.network.hosts[0].peer is not None))
    cluster.run()
    assert cluster.network.hosts[2].running.view.ready and not all(up)
