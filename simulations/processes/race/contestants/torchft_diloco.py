"""DiLoCo as torchft has it: a lighthouse on the first host, a manager on each, and Gloo groups that are made anew.

It races only where torchft is installed. The lighthouse has the settings of its README; where a host is slow, it
waits longer for hosts that are alive. The quorum is synchronous, because DiLoCo asks for that, and may wait ten
minutes: the documentation wants that time longer than a round. `init_sync` is off, as it advises where all weights
begin equal. Rounds and outer step are those of `diloco`, if no option says otherwise.

With `--fragments 2` it is Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512): the all-reduce of a fragment may
last `--delay` steps beside training, and `--alpha` is the share of the local parameters afterwards.
"""

from __future__ import annotations

import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from simulations.processes.race.contestants.diloco import ROUND
from simulations.processes.race.training import Trainer, fragments_of

LIGHTHOUSE, STORE = 29510, 29600
"""ports"""
QUORUM = timedelta(minutes=10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--round", type=int, default=ROUND, help="steps between two outer steps of a fragment")
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0, help="steps that an all-reduce may last")
    parser.add_argument("--alpha", type=float, default=0.0, help="share of the local parameters after an outer step")
    parser.add_argument("--momentum", type=float, default=0.9, help="of the outer step")
    parser.add_argument("--address", required=True, help="of this host")
    parser.add_argument("--first", required=True, help="address of the first host")
    parser.add_argument("--timeout", type=float, required=True, help="of a collective, in seconds")
    parser.add_argument("--join", type=float, required=True, help="seconds that the lighthouse waits for live hosts")
    trainer, options = Trainer.of_command_line(parser)
    kept: list[object] = []
    if options.host == 0:
        bind = f"0.0.0.0:{LIGHTHOUSE}"
        join = round(1000.0 * options.join)
        kept.append(LighthouseServer(bind=bind, min_replicas=1, quorum_tick_ms=100, join_timeout_ms=join))
    timeout = timedelta(seconds=options.timeout)
    # The manager finds its host's store by address.
    kept.append(dist.TCPStore(options.address, STORE, None, True, wait_for_workers=False))  # type: ignore[attr-defined]
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=trainer.model.load_state_dict,
        state_dict=trainer.model.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timeout,
        quorum_timeout=QUORUM,
        rank=0,
        world_size=1,
        store_addr=options.address,
        store_port=STORE,
        lighthouse_addr=f"http://{options.first}:{LIGHTHOUSE}",
        replica_id=f"host-{options.host}",
        hostname=options.address,
        init_sync=False,
    )
    fragments = fragments_of(trainer.model, options.fragments)
    outer = [
        torch.optim.SGD(fragment.parameters(), lr=0.7, momentum=options.momentum, nesterov=True)
        for fragment in fragments
    ]
    with DiLoCo(
        manager,
        fragments,
        trainer.optimizer,
        outer,
        sync_every=options.round,
        use_bucketization=True,
        fragment_sync_delay=options.delay,
        fragment_update_alpha=options.alpha,
    ):
        for _ in trainer.steps():
            if trainer.step % (options.round // options.fragments) == 0:
                trainer.snapshot()


if __name__ == "__main__":
    main()
