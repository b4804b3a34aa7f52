"""I6 at reduced size: every sample of a covered epoch is used, few twice, under churn and with unequal speeds."""

from dataclasses import replace

import pytest

from gossipdp.protocol.data.coverage import RATE
from simulations.scenarios import data
from simulations.scenarios.data import Conditions


@pytest.mark.long
def test_every_sample_is_used_and_few_twice_under_churn():
    one = data.run(2, churn=0.2, minutes=2.0, blocks=1536, block=32, epoch=85.0)
    print(f"{one.duplicates} of {one.samples} samples again, {one.crashed} of crashed hosts; {one.counted} blocks")
    assert one.peers == 16 and one.epochs >= 1 and min(one.crashes, one.departures) >= 2
    assert one.missed == 0 and one.share <= 0.01 and one.idle < 0.01 and one.busiest < RATE


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 3])
def test_64_peers_use_every_sample_in_epochs_of_little_more_than_a_minute(seed):
    one = data.run(seed, 64, churn=0.2, minutes=2.2, blocks=4096, epoch=80.0)
    assert one.epochs >= 1 and min(one.crashes, one.departures) >= 4
    assert one.missed == 0 and one.share <= 0.01 and one.idle < 0.01
    # Peers also answer newcomers.
    assert one.busiest < 1.1 * RATE


def test_lossy_network_without_churn_uses_every_sample():
    one = data.run(3, 5, churn=0.0, minutes=1.5, blocks=512, block=16, epoch=60.0, conditions=Conditions(loss=0.3))
    assert one.epochs >= 1 and one.missed == 0 and one.share <= 0.01


def test_same_seed_comes_out_the_same():
    runs = [replace(data.run(5, 4, minutes=0.5, blocks=64, epoch=20.0), wall=0.0) for _ in range(2)]
    assert runs[0] == runs[1]


def test_table_has_a_line_a_run_and_shows_a_miss(capsys, monkeypatch):
    arguments = ["--minutes", "0.5", "--peers", "4", "--blocks", "64", "--epoch", "15", "--churn", "0"]
    assert data.main([*arguments, "--seeds", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    monkeypatch.setattr(data.Reader, "_used", lambda *_: None)
    assert data.main(arguments) == 1
