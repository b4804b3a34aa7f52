"""When every seed has refused a newcomer, and when waiting may still help."""

from __future__ import annotations

import pytest

from gossipdp.runtime.network.refusals import TIMES, Refusals

A, B = "10.0.0.1:4710", "host2:4710"


@pytest.mark.parametrize(("code", "exit_code"), [("GD-204", 5), ("GD-203", 6), ("GD-302", 6)])
def test_all_addresses_refuse_several_times__error_names_each(code: str, exit_code: int) -> None:
    refusals = Refusals([A, B])
    told = [refusals.failed(address, code, "said no") for _ in range(TIMES) for address in (A, B)]
    assert told[:-1] == [None] * (2 * TIMES - 1)
    error = told[-1]
    assert error is not None and (error.code, error.exit_code) == (code, exit_code)
    assert error.seen == f"{code} {A}: said no; {code} {B}: said no" and error.do


@pytest.mark.parametrize("code", ["GD-101", "GD-104", "GD-201", "GD-205"])
def test_failure_that_may_pass_is_no_refusal(code: str) -> None:
    refusals = Refusals([A, B])
    for _ in range(2 * TIMES):
        assert refusals.failed(A, "GD-204", "said no") is None
        assert refusals.failed(B, code, "no answer") is None
        assert refusals.failed(B, "GD-204", "said no") is None


def test_member_met_or_address_not_given__no_error() -> None:
    refusals, nobody = Refusals([A]), Refusals()
    refusals.met_member()
    for _ in range(2 * TIMES):
        assert refusals.failed(A, "GD-204", "said no") is None
        assert nobody.failed(B, "GD-204", "said no") is None


def test_refusal_by_this_peers_own_lists_does_not_count() -> None:
    refusals = Refusals([A])
    assert [refusals.failed(A, "GD-204", "kept out here", ours=True) for _ in range(2 * TIMES)] == [None] * (2 * TIMES)
