"""What a daemon finds of an earlier start in its home."""

from pathlib import Path
from typing import Any

import pytest

from gossipdp.protocol.wire.messages import Member, State
from gossipdp.runtime import files
from peers import home as homes
from peers.home_records import HomeRecords, remembered

NO_INVITE: Any = None
"""the settings matter for the secret alone"""


@pytest.fixture
def records(tmp_path: Path) -> HomeRecords:
    return HomeRecords(tmp_path, NO_INVITE)


def test_run_that_was_founded_is_the_run_of_the_next_start(tmp_path: Path, records: HomeRecords) -> None:
    assert records.found_run() == files.load_run(tmp_path / homes.RUN)
    records.learn_run(b"r" * 16)
    assert files.load_run(tmp_path / homes.RUN) == b"r" * 16


def test_members_that_can_be_dialled_come_back_and_yield_to_what_they_say(tmp_path: Path, records: HomeRecords) -> None:
    seen = Member(b"a" * 32, "a", "10.0.0.2:4710", 7, 3, State.ALIVE, others=("10.0.0.3:4710",))
    records.remember([(seen, 90.0), (Member(b"b" * 32, "b", "", 7, 3, State.ALIVE), 60.0)])
    [(kept, known)], damage = remembered(tmp_path)
    assert (kept.id, kept.name, kept.addresses, known) == (seen.id, "a", seen.addresses, 90.0)
    assert kept.incarnation == 0 and not damage
