"""What sources sign keeps its bytes: peers of two versions check each other's signatures."""

from gossipdp.protocol.transfer.manifest import signed_part
from gossipdp.protocol.transfer.moments import signed_moments
from gossipdp.protocol.wire.messages import MomentsManifest, StateManifest

STATE = StateManifest(1, 2, 300, 8192, 100, 10, b"d" * 16, b"s" * 16, 5, 7)


def test_digest_of_a_state_is_as_kept() -> None:
    digest = "6b1dd535cd6df612d5d2578a69dec96b5a2d3cb98bbe9a9d1e53a41a9e39ffa1"
    assert signed_part(STATE, b"schema", b"h" * 16).hex() == digest


def test_digest_of_moments_is_as_kept() -> None:
    manifest = MomentsManifest(1, 2, 300, 8192, 40, b"d" * 16)
    assert (
        signed_moments(manifest, b"h" * 16).hex() == "9a69416f42e1cab2f3709ddbb67571a60c01aa037b7f96201731c57e78ace18e"
    )
