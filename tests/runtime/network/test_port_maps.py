"""Port maps of marketplaces: which variables are read, and what is said if the port is not mapped."""

from __future__ import annotations

import pytest

from gossipdp.runtime.network.port_maps import PREFIXES, port_map

VAST = {"VAST_CONTAINERLABEL": "C.1234", "PUBLIC_IPADDR": "65.130.162.74", "VAST_TCP_PORT_22": "33520"}
RUNPOD = {"RUNPOD_POD_ID": "abc", "RUNPOD_PUBLIC_IP": "213.173.1.2", "RUNPOD_TCP_PORT_22": "10022"}


@pytest.mark.parametrize(
    ("environment", "address", "name"),
    [
        (VAST | {"VAST_TCP_PORT_4710": "33526"}, "65.130.162.74:33526", "Vast.ai"),
        (VAST | {"VAST_TCP_PORT_4710": "33526", "PUBLIC_IPADDR": " 65.130.162.74\n"}, "65.130.162.74:33526", "Vast.ai"),
        (VAST | {"VAST_TCP_PORT_4710": "33526", "PUBLIC_IPADDR": "2600::1"}, "[2600::1]:33526", "Vast.ai"),
        (VAST | {"VAST_TCP_PORT_70000": "4710"}, "65.130.162.74:4710", "Vast.ai"),
        (RUNPOD | {"RUNPOD_TCP_PORT_4710": "10310"}, "213.173.1.2:10310", "RunPod"),
        (RUNPOD | {"RUNPOD_TCP_PORT_70001": "4710"}, "213.173.1.2:4710", "RunPod"),
    ],
)
def test_port_is_mapped__its_outside_address_and_the_marketplace(
    environment: dict[str, str], address: str, name: str
) -> None:
    found = port_map(4710, environment)
    assert found is not None and found.address == address
    assert found.why == f"the port map of {name} for TCP port 4710" and not found.do
    assert all(key.startswith(PREFIXES) for key in environment)


@pytest.mark.parametrize(
    ("environment", "why", "do"),
    [
        (VAST, "Vast.ai maps no outside port to TCP port 4710 (mapped ports: 22)", '"-p 4710:4710" to the Docker'),
        ({"VAST_CONTAINERLABEL": "C.1"}, "(mapped ports: none)", '"-p 4710:4710"'),
        (VAST | {"VAST_TCP_PORT_70000": "33527"}, "(mapped ports: 22, 70000)", '"-p 4710:4710"'),
        (RUNPOD, "RunPod maps no outside port to TCP port 4710", 'add 4710 to "Expose TCP Ports"'),
        ({"RUNPOD_POD_ID": "a", "RUNPOD_TCP_PORT_4710": "1"}, "RunPod set no RUNPOD_PUBLIC_IP", "needs a public IP"),
        (RUNPOD | {"RUNPOD_TCP_PORT_4710": "many"}, "port 'many', which is no address", "Expose TCP Ports"),
    ],
)
def test_port_is_not_mapped__the_reason_and_what_opens_it(environment: dict[str, str], why: str, do: str) -> None:
    found = port_map(4710, environment)
    assert found is not None and not found.address
    assert why in found.why and do in found.do


@pytest.mark.parametrize("environment", [{}, {"PUBLIC_IPADDR": "1.2.3.4"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
def test_no_marketplace__no_map(environment: dict[str, str]) -> None:
    assert port_map(4710, environment) is None
