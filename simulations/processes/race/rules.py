"""What all contestants have in common: the model, the pace of a step, the networks, the conditions, and their scale.

Four hosts share two cores here, so the model is small: 0.246 million parameters. The links are slower by a factor
`SCALE`, so that bytes, step time and rate have the ratio of a larger model. A step lasts at least `STEP` seconds, as a
step of a GPU would. Bytes by rate and step time are those of 10 million parameters with steps of 0.1 s on the named
link, or of 100 million parameters with steps of 1 s. Round trips are not scaled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["CONDITIONS", "HOSTS", "NETWORKS", "QUICK", "RULES", "SLOWER", "TOGETHER", "Condition", "Network", "Rules"]

HOSTS = 4
TOGETHER = 0.3
"""seconds: snapshots of one slot, or of one averaging, lie no further apart"""
PARAMETERS = 246_240
SCALE = 40.0
"""the named rate divided by the emulated one; 0.246 million parameters stand for 10 million"""
SLOWER = 4.0
"""a step of the slow host, in steps of the others"""


@dataclass(frozen=True)
class Network:
    name: str
    rate: float
    """Mbit/s of each host's cable and way, as named"""
    rtt: float
    """seconds between any two hosts"""
    lasts: float = 1.0
    """length of a run here, in those of `Rules`: slow links give a group few rounds"""

    @property
    def emulated(self) -> str:
        """The rate after scaling, as tc writes it."""
        return f"{self.rate / SCALE * 1000:.0f}kbit"

    @property
    def all_reduce(self) -> float:
        """Seconds that a ring needs for all parameters in fp32."""
        return 2 * (HOSTS - 1) / HOSTS * PARAMETERS * 32 / (self.rate / SCALE * 1e6)

    @property
    def title(self) -> str:
        return f"{self.rate:g} Mbit/s, {self.rtt * 1000:g} ms"


@dataclass(frozen=True)
class Condition:
    name: str
    title: str
    short: str
    """title in a narrow table"""
    slow: bool = False
    """the last host's steps are `SLOWER` times longer"""
    dies: bool = False
    """the last host loses power at a third of the run"""

    @property
    def timeout(self) -> float:
        """Seconds that a collective may wait. It must outlast a wait for the slow host: 60 s for DiLoCo with H 200."""
        return 180.0 if self.slow else 15.0

    @property
    def join(self) -> float:
        """Seconds for which torchft's lighthouse waits for hosts that are alive: as its README has it, or longer."""
        return 60.0 if self.slow else 10.0


NETWORKS = (Network("100mbit", 100.0, 0.05), Network("20mbit", 20.0, 0.15, lasts=5 / 3))
CONDITIONS = (
    Condition("equal", "equal hosts", "equal hosts"),
    Condition("slow", "one host four times slower", "one slow", slow=True),
    Condition("power", "one host loses power at a third", "one lost", dies=True),
)


@dataclass(frozen=True)
class Rules:
    """Lengths of a run. All times are in seconds."""

    size: str = "0.25M"
    batch: int = 2
    """windows a step and host"""
    context: int = 64
    """bytes a window"""
    lr: float = 2e-3
    """constant after the warm-up, so that no contestant needs to know the length of the run"""
    warmup: int = 20
    """steps"""
    step: float = 0.1
    """shortest time of a step"""
    seconds: float = 90.0
    longer: float = 120.0
    """the run in which a host dies"""
    slot: float = 3.0
    """time between two snapshots of a host"""
    checkpoint: float = 5.0
    """shortest time between two checkpoints of a group"""
    windows: int = 64
    """held-out windows"""

    def on(self, network: Network) -> Rules:
        """The rules with the lengths of runs on this network."""
        return replace(self, seconds=self.seconds * network.lasts, longer=self.longer * network.lasts)

    def length(self, condition: Condition) -> float:
        return self.longer if condition.dies else self.seconds


RULES = Rules()
QUICK = replace(RULES, seconds=6.0, longer=45.0, slot=1.0, windows=8)
"""runs whose figures mean nothing"""
