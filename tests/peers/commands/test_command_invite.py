"""`gossipdp invite --for`, `--list` and `--revoke`, and what `join` does with such an invite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossipdp.protocol.admission.statements import receipt
from gossipdp.runtime.network.identity import Identity, NetworkSecret, digest_of
from gossipdp.runtime.network.invite import HostInvite
from peers import home, invites, redeemed
from tests.peers.commands.office import Office
from tests.peers.commands.running import Run


def host_invite(founder: Path, name: str = "gpu2") -> HostInvite:
    invite = invites.read_invite((founder / "invites" / name).read_text()).invite
    assert isinstance(invite, HostInvite)
    return invite


def test_invite_for_one_host_holds_no_secret_and_is_signed(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    office = Office(monkeypatch, founder, {})
    done = gossipdp("invite", "--for", "gpu2", "--expires", "90m", "--home", founder)
    assert done.code == 0 and "lets one host in until" in done.out and "gossipdp join @invite" in done.out
    path, invite, secret = founder / "invites" / "gpu2", host_invite(founder), NetworkSecret.load(founder)
    assert path.stat().st_mode & 0o777 == 0o600 and invite.seeds == ("10.0.0.1:4710",)
    assert office.admission.about(invite.decision.subject) == invite.decision
    assert invite.curve == secret.curve_server_keys().public
    assert (invite.generation, invite.digest) == (secret.generation, digest_of(secret.reveal_generation()))
    for hidden in (secret.reveal(), secret.reveal_generation()):
        assert hidden not in invite.key + invite.curve + invite.digest and hidden.hex() not in repr(invite)
    settings = invites.read_invite(path.read_text()).settings
    assert "every = 7" in settings and "bandwidth" not in settings


def test_invites_are_listed_with_whom_they_let_in_and_revoked(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    joiner = Identity.generate()
    office = Office(monkeypatch, founder, {"host2": joiner})
    assert "There is no invite" in gossipdp("invite", "--list", "--home", founder).out
    gossipdp("invite", "--for", "gpu2", "--uses", "2", "--home", founder)
    invite = host_invite(founder)
    made = receipt(invite.decision, joiner.id, "tiny", Identity(invite.key).sign)
    assert office.admission.redeem(invite.decision, made, 0.0) == ""
    row = gossipdp("invite", "--list", "--home", founder).out.splitlines()[-1]
    assert row.startswith("gpu2") and "1 of 2" in row and "open" in row and row.endswith("host2")
    assert "there is an invite for gpu2" in gossipdp("invite", "--for", "gpu2", "--home", founder).err
    done = gossipdp("invite", "--revoke", "gpu2", "--home", founder)
    assert done.code == 0 and "host2" in done.out and "members ban" in done.out
    assert not (founder / "invites" / "gpu2").exists()
    assert "revoked" in gossipdp("invite", "--list", "--home", founder).out.splitlines()[-1]
    assert gossipdp("invite", "--for", "gpu2", "--home", founder).code == 0, "the name is free again"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--for", "../x"), "NAME has 1 to 48 letters"),
        (("--for", "a", "--list"), "give one of"),
        (("--revoke", "nobody"), "there is no invite for nobody"),
        (("--for", "a", "--expires", "soon"), "'soon' is no time"),
        (("--for", "a", "--uses", "0"), "0 is not in the range"),
    ],
)
def test_wrong_use_is_told(
    gossipdp: Run, founder: Path, monkeypatch: Any, arguments: tuple[str, ...], text: str
) -> None:
    Office(monkeypatch, founder, {})
    done = gossipdp("invite", *arguments, "--home", founder)
    assert done.code == 2 and text in done.err


def test_network_of_an_earlier_version_needs_a_new_secret_first(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    NetworkSecret(NetworkSecret.load(founder).reveal()).replace(founder)
    (founder / "decisions.json").unlink()
    Office(monkeypatch, founder, {})
    done = gossipdp("invite", "--for", "gpu2", "--home", founder)
    assert done.code == 3 and done.err.startswith("GD-208") and "keys rotate" in done.err


def test_home_that_has_the_secret_shows_the_invite_to_nobody(
    gossipdp: Run, founder: Path, monkeypatch: Any, started: list[Any], tmp_path: Path
) -> None:
    """As after a restart of a container, when the invite may have expired."""
    Office(monkeypatch, founder, {})
    gossipdp("invite", "--for", "gpu2", "--home", founder)
    secret, asked = NetworkSecret.load(founder), list[bytes]()

    def member(_invite: HostInvite, identity: Identity) -> NetworkSecret:
        asked.append(identity.id)
        return secret

    monkeypatch.setattr(redeemed, "redeem", member)
    for _ in range(2):
        assert gossipdp("join", f"@{founder}/invites/gpu2", "--home", tmp_path / "j").code == 0
    joined = home.network_of(tmp_path / "j")
    assert joined is not None and joined.seeds == ("10.0.0.1:4710",)
    assert joined.operator == host_invite(founder).operator.hex()
    assert asked == [Identity.load(tmp_path / "j").id] and NetworkSecret.load(tmp_path / "j") == secret
    NetworkSecret(secret.reveal()).replace(tmp_path / "j")
    gossipdp("join", f"@{founder}/invites/gpu2", "--home", tmp_path / "j")
    assert len(asked) == 2, "an older secret does not do"
