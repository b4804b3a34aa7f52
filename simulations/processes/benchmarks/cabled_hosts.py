"""Hosts of a benchmark: one home for each network namespace of a lab. The first founds the network."""

from __future__ import annotations

from pathlib import Path

from simulations.processes.namespaces.hosts import Lab
from simulations.processes.namespaces.processes import Host

__all__ = ["cabled_hosts"]

PORT = 4710


def cabled_hosts(lab: Lab, folder: Path, settings: str) -> list[Host]:
    """One host for each cable of the lab, with the preset of wide-area networks.

    Args:
        folder: for the homes and logs.
        settings: TOML tables beyond [network].
    """
    return [
        Host(
            folder,
            f"h{number}",
            founder=number == 0,
            address=cable.address,
            port=PORT,
            within=cable.command,
            preset="wan",
            settings=settings,
        )
        for number, cable in enumerate(lab.hosts)
    ]
