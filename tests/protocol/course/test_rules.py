"""Whose model a peer holds: each rule as a table of cases (protocol sections 8 and 9, algorithms section 8)."""

import ast
import inspect

import pytest

from gossipdp.protocol.course import facts, rules, table
from gossipdp.protocol.course.facts import Facts
from gossipdp.protocol.course.rules import NO_LINE, goes_before, keeps_parameters, lags, side_to_follow
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.wire.messages import Line

A, B, C = (bytes([letter]) * 32 for letter in b"abc")
OWN, SMALL, ONE, BIG = Line(1, 3, 100, 10, A), Line(1, 2, 900, 90, B), Line(1, 1, 1, 1, C), Line(1, 5, 10, 1, C)
COPIES = Line(1, 9, 900, 90, B, trains=False)


@pytest.mark.parametrize(
    ("own", "voices", "company", "few", "followed"),
    [
        pytest.param(OWN, {}, True, False, None, id="nobody else"),
        pytest.param(OWN, {BIG: [B, C]}, True, False, BIG, id="two voices for a greater line"),
        pytest.param(OWN, {BIG: [B]}, True, False, None, id="one voice of several members"),
        pytest.param(OWN, {BIG: [B]}, True, True, BIG, id="the only voice that there can be"),
        pytest.param(OWN, {SMALL: [B, C]}, True, False, None, id="a smaller side, however far it has trained"),
        pytest.param(OWN, {COPIES: [B, C]}, True, False, None, id="a larger side that does not train"),
        pytest.param(NO_LINE, {ONE: [C]}, True, False, None, id="one voice for one member, to a peer with company"),
        pytest.param(NO_LINE, {ONE: [C]}, False, False, ONE, id="one voice for one member, to a peer alone"),
        pytest.param(ONE, {SMALL: [A, B], BIG: [B, C]}, True, False, BIG, id="the greatest of two"),
        pytest.param(ONE, {SMALL: [A, B], BIG: [C]}, True, False, SMALL, id="the greatest of those that are proven"),
    ],
)
def test_side_to_follow(own, voices, company, few, followed):
    assert side_to_follow(own, voices, company=company, few=few) == followed


@pytest.mark.parametrize(
    ("steps", "transfer", "late"), [(30, 0.0, False), (31, 0.0, True), (31, 16.0, False), (33, 16.0, True)]
)
def test_lags(steps, transfer, late):
    assert lags(steps, 30, transfer) == late


@pytest.mark.parametrize(
    ("theirs", "lower", "first"),
    [
        (Held(101, 1), False, True),
        (Held(99, 99), True, False),
        (Held(100, 11), False, True),
        (Held(100, 10), True, True),
        (Held(100, 10), False, False),
    ],
)
def test_later_checkpoint_goes_first_and_of_equal_ones_that_of_the_lower_id(theirs, lower, first):
    assert goes_before(Held(100, 10), theirs, lower=lower) == first


@pytest.mark.parametrize(
    ("live", "others_train", "keeps"),
    [
        pytest.param(Live(90, 0, 0), True, True, id="two rounds behind"),
        pytest.param(Live(89, 0, 0), True, False, id="further behind"),
        pytest.param(Live(200, 0, 0), True, True, id="ahead"),
        pytest.param(Live(0, 0, 0, loaded=True), False, True, id="weights loaded, and nobody else trains"),
        pytest.param(Live(100, 0, 0, loaded=True), True, False, id="weights loaded, and others train"),
    ],
)
def test_live_process_keeps_its_parameters(live, others_train, keeps):
    assert keeps_parameters(live, 100, 5, others_train=others_train) == keeps


VALUES = {"facts", "rules", "table"}
"""modules of the course that hold no machine"""


@pytest.mark.parametrize("module", [facts, rules, table])
def test_no_rule_imports_a_machine(module):
    tree = ast.parse(inspect.getsource(module))
    of_protocol = [
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "protocol" in node.module
    ]
    course = [name.rpartition(".")[2] for name in of_protocol if ".course." in name]
    assert {*course} <= VALUES
    others = {name for name in of_protocol if ".course." not in name}
    assert others <= {
        "gossipdp.protocol.state_machine",
        "gossipdp.protocol.transfer.claims",
        "gossipdp.protocol.wire.messages",
    }


def test_each_fact_is_read_by_a_rule():
    tree = ast.parse(inspect.getsource(rules))
    names = {"facts"}
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    }
    assert read == set(Facts.__dataclass_fields__)
