"""A script that replaces what messages are written with: training goes on, and the daemon hears what matters."""

import builtins
import logging
import logging.config
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gossipdp.runtime import link as links
from gossipdp.training.messages import log
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, submits, train


def fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError("of the script")


class Refusing(logging.Handler):
    emit = fails


class Own(logging.Logger):
    """As a class of loggers that takes a rank with each message."""

    _log = fails


def printing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "print", lambda *_, force: None)


def handler(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger().addHandler(Refusing())


def disabling(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.disable(logging.CRITICAL)


def configuring(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})


def logger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "logger", Own("gossipdp.training"))


def factory(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.setLogRecordFactory(fails)


def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    factory(monkeypatch)


def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    factory(monkeypatch)


LOUD = [handler, logger, factory, quiet]
"""those after which a message goes to standard error"""


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    root, made, manager = logging.getLogger(), logging.getLogRecordFactory(), logging.Logger.manager
    handlers, level = root.handlers[:], root.level
    known = {each: each.disabled for each in manager.loggerDict.values() if isinstance(each, logging.Logger)}
    yield
    logging.disable(logging.NOTSET)
    logging.setLogRecordFactory(made)
    root.handlers[:] = handlers
    root.setLevel(level)
    for each, disabled in known.items():
        each.disabled = disabled


@pytest.mark.parametrize("replace", [printing, disabling, configuring, closed, *LOUD])
def test_what_messages_are_written_with_is_replaced__training_goes_on_and_the_daemon_is_told(
    daemon: LedgerDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    replace: Callable[[pytest.MonkeyPatch], None],
) -> None:
    model = small()
    model[0].requires_grad_(False)  # type: ignore[index,operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, every=2)
    replace(monkeypatch)
    model[0].requires_grad_(True)  # type: ignore[index,operator]
    train(model, optimizer, 4, daemon.pump)
    optimizer.add_param_group({"params": list(nn.Linear(2, 2).parameters())})
    train(model, optimizer, 2, daemon.pump)
    peer.detach()
    daemon.pump()
    assert submits(daemon) == 3 * [(2, 2)]
    told = [event.text for event in daemon.events if isinstance(event, links.Told) and event.code == "GD-319"]
    assert ["has changed since" in text for text in told] == [True, False] and "does not hold: 2," in told[1]
    monkeypatch.undo()
    assert ("GD-319 the model has changed since" in capsys.readouterr().err) == (replace in LOUD)
