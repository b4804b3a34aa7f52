"""What doctor hears from the router of this host's network."""

import threading
import time
from collections.abc import Callable

import pytest

from gossipdp.runtime.network.nat_pmp import RouterError
from peers.doctor.examination import Outside, outside, router
from peers.doctor.findings import Light


class Asked:
    """A protocol whose router answers as `answer` does."""

    def __init__(self, name: str, answer: Callable[[], str]) -> None:
        self.name, self._answer = name, answer

    def outside_address(self) -> str:
        return self._answer()


def silent(name: str) -> Asked:
    def answer() -> str:
        raise RouterError(f"no {name} router answers")

    return Asked(name, answer)


@pytest.mark.parametrize("first", [True, False])
def test_one_router_tells__its_address_and_the_way(first: bool) -> None:
    tells = Asked("UPnP", lambda: "8.8.4.4")
    asked = [tells, silent("NAT-PMP")] if first else [silent("NAT-PMP"), tells]
    assert outside(asked, time.monotonic() + 1000.0) == Outside("8.8.4.4", "UPnP")


def test_no_router_tells__all_reasons() -> None:
    told = outside([silent("NAT-PMP"), silent("UPnP")], time.monotonic() + 1000.0)
    assert not told.address and {*told.why.split("; ")} == {"no NAT-PMP router answers", "no UPnP router answers"}
    finding = router(told)
    assert finding.light is Light.GREY and told.why in finding.said
    assert router(outside([], time.monotonic())).light is Light.GREY


def test_router_that_hangs__is_not_waited_for_and_another_one_counts() -> None:
    over = threading.Event()
    hangs = Asked("UPnP", lambda: str(over.wait()))
    try:
        assert outside([hangs, silent("NAT-PMP")], time.monotonic() + 0.1).why.endswith("no answer in time")
        tells = Asked("NAT-PMP", lambda: "8.8.4.4")
        assert outside([hangs, tells], time.monotonic() + 1000.0) == Outside("8.8.4.4", "NAT-PMP")
    finally:
        over.set()


@pytest.mark.parametrize(("address", "public"), [("8.8.4.4", True), ("100.64.1.2", False), ("192.168.1.1", False)])
def test_address_that_is_not_public_is_said_to_be_translated_again(address: str, public: bool) -> None:
    finding = router(Outside(address, "UPnP"))
    assert finding.light is Light.GREEN and f"reports the outside address {address}, asked by UPnP" in finding.said
    assert ("there is a second NAT" in finding.said) is not public
