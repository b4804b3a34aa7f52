"""The page of optimizers: its kinds of rows, played again, and a row for each optimizer that is installed."""

import dataclasses
import math
from pathlib import Path

import pytest

pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from simulations.optimizers.catalogue import LIBRARIES, Kind, every, installed
from simulations.optimizers.page import PAGE, page, versions, without_row, words
from simulations.optimizers.running import Played, keep, kept, played
from simulations.optimizers.trial import MARGIN, WORDS, Row, verdict

GOOD = Row("torch.AdamW", 0.01, *[0.2] * 5, apart=0.1, exchanges=50, saves="exact")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "works"),
        ({"setting": "attach(model, optimizer.base)"}, "works with a setting"),
        ({"told": ("GD-327",)}, "works"),
        ({"apart": 0.9}, "learns little from others"),
        ({"apart": math.nan}, "learns little from others"),
        ({"together": 0.2 * (1 + MARGIN[0]) + MARGIN[1]}, "works"),
        ({"joiner": 0.28}, "worse together"),
        ({"mean": math.nan}, "worse together"),
        ({"refused": "GD-317 no torch optimizer"}, "refused"),
        ({"broken": "ImportError: einops"}, "not judged"),
        ({"alone": 2.3, "together": 2.3}, "not judged"),
    ],
)
def test_a_row_has_the_word_of_its_figures(changes: dict[str, object], word: str) -> None:
    assert verdict(dataclasses.replace(GOOD, **changes)) == word


def test_a_page_gives_its_words_versions_and_what_is_not_played_back() -> None:
    rows = [GOOD, dataclasses.replace(GOOD, key="pytorch_optimizer.Magma", refused="GD-317 no hooks")]
    text = page([of_now(row) for row in rows], ["pytorch_optimizer.Lion", "torch.SGD"], "the command")
    assert words(text) == {"torch.AdamW": "works", "pytorch_optimizer.Magma": "refused"}
    assert without_row(text) == {"pytorch_optimizer.Lion", "torch.SGD"}
    assert versions(text)["torch"] == installed("torch")
    assert "2 optimizers: 1 works, 1 refused.\n\n**Incomplete**: 2 more are not played yet." in text
    assert "* **refused**: GD-317 no hooks: `pytorch_optimizer.Magma`." in text
    assert "2 minutes of one core. Commit abc, " in text
    assert "ncomplete" not in page([of_now(GOOD)], [], "the command")


def test_kept_rows_are_those_of_the_versions_that_are_installed(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    assert kept(file) == {}
    now, before = of_now(GOOD), dataclasses.replace(of_now(GOOD), version="0.1")
    for each in (now, before):
        keep(each, file)
    assert kept(file) == {"torch.AdamW": now}


def of_now(row: Row) -> Played:
    return Played(row, 60.0, "abc", installed(row.key.partition(".")[0]))


def test_the_page_names_each_optimizer_of_the_versions_that_are_installed() -> None:
    text = PAGE.read_text()
    told, of = words(text), versions(text)
    named = told.keys() | without_row(text)
    assert set(told.values()) <= set(WORDS) and {key.partition(".")[0] for key in named} == set(LIBRARIES) == set(of)
    same = {library for library in LIBRARIES if of[library].split("+")[0] == installed(library).split("+")[0]}
    assert {"torch", "pytorch_optimizer"} <= same, "constraints.txt has the page's versions"
    of_page = {key for key in named if key.partition(".")[0] in same}
    assert {kind.key for kind in every() if kind.library in same} == of_page


SAMPLE = ["torch.AdamW", "pytorch_optimizer.AccSGD"]
MORE = ["torch.Muon", "torch.LBFGS", "torch.RAdam", "pytorch_optimizer.AdaLOMO", "pytorch_optimizer.SignSGD"]


@pytest.mark.parametrize("keys", [SAMPLE, pytest.param(MORE, marks=pytest.mark.long)])
def test_optimizers_of_each_kind_have_the_words_of_the_page(keys: list[str]) -> None:
    kinds = [Kind(*key.split(".")) for key in keys]
    told = words(PAGE.read_text())
    assert {each.row.key: verdict(each.row) for each in played(kinds, jobs=1)} == {key: told[key] for key in keys}
