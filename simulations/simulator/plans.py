"""The plan of a seed of `cluster`: size of the network, weather, faults, and length of each act.

The plan is drawn from several random sources, so that a new draw leaves the rest of the plan as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from simulations.simulator.faults import Fault, draw, draw_joins, draw_replays
from simulations.simulator.network import Conditions
from simulations.simulator.settings import HOST

__all__ = ["Plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a seed decides. Times in virtual seconds."""

    peers: int
    size: int
    conditions: Conditions
    every: int
    window: int
    script: tuple[Fault, ...] = ()
    """faults of the second act"""
    buffers: int = 44
    """number of parameters, out of `size`, that are a buffer's"""
    forming: float = 6.0
    chaos: float = 14.0
    calm: float = 12.0
    agree: bool = False
    """whether there is a fourth act"""
    step_time: float = 0.2
    """seconds per step of a training process"""
    pull: float = 0.05
    """share of the distance to its optimum that a step of a training process moves"""
    slowness: tuple[float, ...] = ()
    """factor of each host's step time; empty: 1 for all"""
    preset: str = "local"
    """preset of membership"""
    dead: bool = False
    """a host that is up when all faults stop is killed then, and never comes back"""
    apart_rounds: int = HOST.exchange.apart_rounds
    """rounds of separation after which two sides no longer average"""
    lateness: tuple[float, ...] = ()
    """seconds from each daemon's start to the start of its training process; empty: none"""
    moments: int = 0
    """rounds between two reports of the optimizers' moments; 0: optimizers have none"""
    before: Conditions = field(default_factory=Conditions)
    """weather of the first half of the first act, and of the third act"""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        random = Random(f"plan/{seed}")
        peers = random.choice((2, 2, 3, 3, 4, 5, 6, 8)) if seed % 8 else random.randint(9, 16)
        if seed % 50 == 14:
            peers = 64
        small, long = peers <= 8, seed % 25 == 7
        preset = random.choices(("local", "lan", "wan"), (14, 1, 1))[0] if peers <= 5 and not long else "local"
        patient = preset != "local"
        """the preset's suspicions take half a minute"""
        conditions = Conditions(
            latency=random.choice((0.001, 0.01, 0.05, 0.15)),
            jitter=random.choice((0.0, 0.5, 2.0)),
            bandwidth=random.choice((1.25e5, 1.25e6, 1.25e7)),
            loss=random.choice((0.0, 0.02, 0.1, 0.3, 0.5)),
            duplicate=random.choice((0.0, 0.05, 0.1)),
            reorder=random.choice((0.0, 0.05, 0.2)),
            late=30.0 if long else random.choice((0.1, 1.0)),
            job=random.choice((0.001, 0.01, 0.04)),
        )
        chunks = random.randint(1, 4) if small else random.randint(1, 2) if peers <= 16 else 1
        forming, calm = _lengths(peers, long=long, patient=patient)
        chaos = 60.0 if long else 32.0 if patient else 14.0 if small else 8.0
        # Few networks have no fault. In some the first fault strikes while hosts look for the network.
        count = (random.randint(0, 8) or random.randint(0, 8)) * (2 if long or patient else 1)
        begin, end = random.choice((1.0, forming, forming, forming)), forming + chaos - 1.0
        script = draw(random, count=count, peers=peers, begin=begin, end=end, long=long or patient)
        if random.random() < 0.25:
            joins = draw_joins(random, peers=peers, begin=begin, end=end)
            script = tuple(sorted((*script, *joins), key=lambda fault: fault.at))
        stranger = Random(f"replays/{seed}")
        if stranger.randrange(5) == 0:
            replays = draw_replays(stranger, peers=peers, begin=begin, end=end)
            script = tuple(sorted((*script, *replays), key=lambda fault: fault.at))
        return cls(
            peers=peers,
            size=8192 * (chunks - 1) + 300,
            conditions=conditions,
            every=random.choice((4, 8)),
            window=random.choice((1, 2, 8)),
            script=script,
            forming=forming,
            chaos=chaos,
            calm=calm,
            agree=seed % 10 == 0 or seed % 500 == 14,  # which is one of 64
            preset=preset,
            dead=peers > 2 and Random(f"gone/{seed}").randrange(8) == 0,
            # With few rounds, most cuts of the second act are long ones.
            apart_rounds=Random(f"apart/{seed}").choice((2, 4, 10)),
            slowness=_slowness(seed, peers),
            lateness=_lateness(seed, peers),
            # A daemon uses 10, but lives longer.
            moments=Random(f"moments/{seed}").choice((0, 0, 0, 3)),
        )

    def of_size(self, seed: int, peers: int) -> Plan:
        """The same plan for another number of peers, except the script. Times and speeds fit the new size."""
        forming, calm = _lengths(peers, long=self.conditions.late > 1.0, patient=self.preset != "local")
        return replace(
            self,
            peers=peers,
            forming=forming,
            calm=calm,
            agree=self.agree and peers <= 16,
            dead=self.dead and peers > 2,
            slowness=_slowness(seed, peers),
            lateness=_lateness(seed, peers),
        )


def _lengths(peers: int, *, long: bool, patient: bool) -> tuple[float, float]:
    """Seconds until the network has formed, and seconds of the calm."""
    calm = 45.0 if long else 40.0 if patient else 12.0 if peers <= 8 else 13.0 if peers <= 16 else 15.0
    return 6.0 if peers <= 16 else 10.0, calm


def _slowness(seed: int, peers: int) -> tuple[float, ...]:
    """In one of three networks hosts train half, once or twice as slowly."""
    random = Random(f"speeds/{seed}")
    return tuple(random.choice((0.5, 1.0, 2.0)) for _ in range(peers)) if random.randrange(3) == 0 else ()


def _lateness(seed: int, peers: int) -> tuple[float, ...]:
    """In one of three networks training processes start late, some by many rounds. The founder's does not."""
    random = Random(f"late/{seed}")
    late = random.randrange(3) == 0
    return tuple(random.choice((0.0, 3.0, 10.0)) if host else 0.0 for host in range(peers)) if late else ()
