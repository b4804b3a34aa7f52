"""A status page of many members, served without a daemon."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from gossipdp.runtime.observability.history import MemberRecord, Record
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.page.published import Published

__all__ = ["CLOUD", "NetworkOfMany"]

NAMES = ("gpu-a100-berlin", "node7", "vast-18273645-h100", "lambda-west-3", "ws", "runpod-4090-eu-se-1")


CLOUD = ("ubuntu-gpu-8x-h100-fra1-{:02}", "ip-10-0-31-{}-eu-central-1")
"""host names as clouds give them; a peer without a name adds the begin of its id"""


class NetworkOfMany:
    """The page of the first of `count` members, at `url`. Member n makes n + 1 steps of 8 samples in a second.

    Args:
        cloud: the hosts have names as clouds give them, and the peers no other ones.
        reports: training processes report losses.
        status: further values of the answer to `status`.
    """

    def __init__(
        self, count: int, records: int = 30, *, cloud: bool = False, reports: bool = True, **status: Any
    ) -> None:
        self._published, self._metrics, self._done = Published(), Metrics("0.1.0"), threading.Event()
        self._reports, self._told = reports, status
        self.ids = [f"{n + 1:02x}" * 32 for n in range(count)]
        self.names = [f"{NAMES[n % len(NAMES)]}-{n}" for n in range(count)]
        if cloud:
            self.names = [f"{CLOUD[n % 2].format(200 + n)}-{id[:8]}" for n, id in enumerate(self.ids)]
        host, port = self._metrics.serve("127.0.0.1:0", self._published)
        self.url = f"http://{host}:{port}/"
        self._began = time.time() - 10.0 * records
        self.records = [self._record(self._began + 10.0 * at) for at in range(records)]
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def __enter__(self) -> NetworkOfMany:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._metrics.close()

    def samples(self, member: int, now: float) -> int:
        return 8 * int((member + 1) * (now - self._began))

    def _loss(self, member: int, now: float) -> float | None:
        return None if not self._reports else 2.0 + 3.0 * math.exp(-self.samples(member, now) / 9000)

    def _eval_loss(self, now: float) -> float | None:
        loss = self._loss(0, now)
        return None if loss is None else loss + 0.1

    def _record(self, now: float) -> Record:
        members = tuple(
            MemberRecord(
                id[:8],
                name,
                self.samples(n, now) // 8,
                int(now - self._began),
                self._loss(n, now),
                self.samples(n, now),
            )
            for n, (id, name) in enumerate(zip(self.ids, self.names, strict=True))
        )
        me = members[0]
        return Record(
            time=now, round=me.rounds, steps=me.steps, samples=8 * me.steps, loss=me.loss, ratio=1.5, distance=0.01,
            eval_loss=self._eval_loss(now), sent=10**6, received=10**6, members=members,
        )  # fmt: skip

    def _publish(self) -> None:
        while not self._done.wait(0.05):
            if self._published.due():
                self._published.publish(self._status(), self._members(), self.records)

    def _members(self) -> list[dict[str, Any]]:
        now, states = time.time(), ("alive", "alive", "alive", "suspect", "alive", "failed")
        return [
            {
                "name": name, "id": id, "me": n == 0, "state": states[n % 6], "trains": n % 5 != 4, "gone": None,
                "rtt": 0.01 * n, "round": int(now - self._began), "steps": self.samples(n, now) // 8,
                "samples": self.samples(n, now), "samples_per_second": 8.0 * (n + 1), "loss": self._loss(n, now),
                "sent": 123456789 * n, "received": 98765432 * n, "last_exchange": 3.0 * n if n else None,
                "exchanges": int(now) if n % 3 == 1 else 1,
            }
            for n, (id, name) in enumerate(zip(self.ids, self.names, strict=True))
        ]  # fmt: skip

    def _status(self) -> dict[str, Any]:
        now = time.time()
        exchange = {
            "result": "done",
            "chunks": 8,
            "of": 8,
            "received_bytes": 10**6,
            "sent_bytes": 10**6,
            "seconds": 0.4,
        }
        return {
            "id": self.ids[0], "name": self.names[0], "network": "tiny", "round": int(now - self._began), "do": {},
            "verdict": {"state": "healthy", "text": f"healthy: {len(self.ids)} of {len(self.ids)} peers", "do": []},
            "steps": self.samples(0, now) // 8, "samples": self.samples(0, now), "loss": self._loss(0, now),
            "eval_loss": self._eval_loss(now), "members": {"alive": len(self.ids)}, "links": self.ids[1::2],
            "samples_per_second": 8.0, "network_samples_per_second": 600.0, "consensus_ratio": 1.5, "notices": [],
            "consensus_distance": 0.01, "warming_up": False, "stall_seconds": 3.0, "sent_bytes": 10**9, "uptime": 300.0,
            "received_bytes": 10**9, "training": "attached",
            "recent_exchanges": [{**exchange, "partner": id, "ago": 5.0 * n} for n, id in enumerate(self.ids[1:9])],
            **self._told,
        }  # fmt: skip
