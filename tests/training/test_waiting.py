"""Waits of a training process for its daemon are told as warnings, which scripts without logging show too."""

from collections.abc import Callable
from typing import Any

import pytest

from gossipdp.errors import UnreachableError
from gossipdp.training.dialogue import Phase
from gossipdp.training.waiting import ModelWait, wait_for_moments, wait_for_order


class Waiting:
    """A session whose daemon brings nothing. Each look at it takes a second."""

    def __init__(self) -> None:
        self.phase, self.error, self.waiting_for = Phase.WAITING, None, "model from ab (40%)"
        self.connected, self.alone, self.idle, self.kept_steps = True, False, True, 7
        self.home: Any = None
        self.layout: Any = type("Layout", (), {"schema": type("Schema", (), {"size": 1000})})
        self.lost = ""
        self._now = 100.0

    def now(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def poll(self) -> None:
        pass

    def next_order(self) -> None:
        return None

    @property
    def patience(self) -> float:
        return 112.0 - self._now

    def ask_moments(self) -> None:
        pass

    def given_moments(self) -> None:
        return None

    def lose(self, reason: str) -> None:
        self.lost = reason


def for_the_model(session: Any) -> None:
    with pytest.raises(UnreachableError, match="GD-106"):
        ModelWait(session, 12.0)()


def for_its_round(session: Any) -> None:
    assert wait_for_order(session) is None


def for_moments(session: Any) -> None:
    assert wait_for_moments(session) is None and session.lost


@pytest.mark.parametrize(
    ("waits", "told", "times"),
    [
        (for_the_model, "training is waiting for the model to start from (5 s so far): model from ab (40%)", 1),
        (for_its_round, "training is waiting for the exchanges of its round (mode sync) (5 s so far)", 1),
        (for_moments, "training is waiting for the optimizer's moments (5 s so far)", 2),
    ],
)
def test_a_wait_of_more_than_five_seconds_says_what_for(
    waits: Callable[[Any], None], told: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    waits(Waiting())
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said[0] == told and len(said) == times
