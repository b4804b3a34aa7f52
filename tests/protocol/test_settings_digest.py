"""Sixteen bytes tell whether settings are equal, and which keys differ."""

import pytest

from gossipdp.protocol.settings_digest import MOST, difference, digest_of, keys_apart

SETTINGS = {"algorithm": "pairwise", "weight": "0.5", "lr": "0.7", "momentum": "0.8"}
KEYS = tuple(SETTINGS)


@pytest.mark.parametrize(
    ("changes", "apart"),
    [
        ({}, []),
        ({"lr": "0.6"}, ["lr"]),
        ({"weight": "0.4", "momentum": "0"}, ["weight", "momentum"]),
        ({"algorithm": "another", "lr": "2"}, ["algorithm"]),
    ],
)
def test_keys_whose_values_differ_are_found_in_the_digests(changes: dict[str, str], apart: list[str]) -> None:
    mine, theirs = digest_of(SETTINGS), digest_of({**SETTINGS, **changes})
    assert len(mine) == len(theirs) == 16 and (mine == theirs) == (not apart)
    assert keys_apart(mine, theirs, KEYS) == apart == keys_apart(theirs, mine, KEYS)


def test_text_names_the_keys_if_they_are_known() -> None:
    mine, theirs = digest_of(SETTINGS), digest_of({**SETTINGS, "lr": "0.6"})
    assert difference("member a", mine, theirs, KEYS) == (
        "member a runs with other settings than this peer (lr): see `gossipdp config show` on both"
    )
    assert "than this peer: see" in difference("member a", mine, theirs, ())


def test_more_settings_than_there_is_room_for_are_a_mistake() -> None:
    assert len(digest_of({str(number): "" for number in range(MOST)})) == 16
    with pytest.raises(ValueError, match="limit 6"):
        digest_of({str(number): "" for number in range(MOST + 1)})
