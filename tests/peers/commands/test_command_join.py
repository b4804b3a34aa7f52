"""`gossipdp join`, `gossipdp invite`, and secrets."""

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gossipdp import config as configuration
from gossipdp import launch
from gossipdp.errors import ConfigError
from gossipdp.protocol.admission.statements import receipt
from gossipdp.runtime.network.identity import Identity, NetworkSecret, digest_of
from gossipdp.runtime.network.invite import HostInvite
from peers import home, invites, redeemed
from tests.peers.commands.office import Office
from tests.peers.commands.running import Run


def test_join_brings_secret_seed_and_settings(gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path) -> None:
    done = gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "joiner", "--", "python", "train.py")
    assert done.code == 0, done.err
    joiner = tmp_path / "joiner"
    assert started[0] == {
        "home": joiner, "command": ["python", "train.py"], "overrides": {}, "log_format": "text",
        "verbose": False, "live": True,
    }  # fmt: skip
    assert NetworkSecret.load(joiner) == NetworkSecret.load(founder)
    assert Identity.load(joiner).id != Identity.load(founder).id
    theirs = home.read_config(founder, {"preset": "local"}, {})
    ours = home.read_config(joiner, environment={})
    assert ours.network.name == "tiny" and ours.network.seeds == ("10.0.0.1:4710",)
    assert ours.preset == "local" and ours.exchange.every == 7 and ours.outer.lr == 0.5
    assert ours.exchange.bandwidth == float("inf"), "every host has its own line"
    assert configuration.settings_digest(ours) == configuration.settings_digest(theirs)


def test_relay_joins_without_training_and_stays_a_relay(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path
) -> None:
    relay = tmp_path / "relay"
    assert gossipdp("relay", f"@{founder}/invite", "--home", relay, "--set", "network.relay=50mbit").code == 0
    assert started[-1]["command"] == [] and started[-1]["live"] is False
    network = home.read_config(relay, started[-1]["overrides"]).network
    assert network.relay_only and network.carries == 6.25e6
    later = home.read_config(relay, {}).network
    assert later.relay_only and later.relay == 6.25e6, "`gossipdp up` in the home goes on as a relay"


def test_a_home_that_joined_never_founds(gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path) -> None:
    gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "joiner")
    assert gossipdp("up", "--home", tmp_path / "joiner").code == 0
    assert len(started) == 2 and home.network_of(tmp_path / "joiner").founder is False


def test_an_invite_is_read_from_standard_input(
    gossipdp: Run, started: list[Any], founder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (founder / "invite").read_text()
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert gossipdp("join", "-").code == 0
    assert [call["home"].name for call in started] == ["tiny"]


def test_an_invite_in_the_environment_does_not_outlive_its_reading(
    gossipdp: Run, founder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[tuple[list[str], dict[str, str]]] = []

    def execve(_path: str, arguments: list[str], environment: dict[str, str]) -> None:
        replaced.append((arguments, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv("GOSSIPDP_INVITE", (founder / "invite").read_text())
    home = tmp_path / "joiner"
    with pytest.raises(SystemExit):
        gossipdp(
            "join", "--home", home, "--verbose", "--no-live", "--set", "exchange.every=9", "--", "python", "train.py"
        )
    arguments, environment = replaced[0]
    assert "GOSSIPDP_INVITE" not in environment
    assert arguments[:8] == [*launch.command("peers.cli"), "up", "--home", str(home)]
    assert arguments[-7:] == ["--verbose", "--no-live", "--set", "exchange.every=9", "--", "python", "train.py"]


def test_a_secret_in_argv_is_refused_with_the_three_ways(gossipdp: Run, started: list[Any], founder: Path) -> None:
    token = (founder / "invite").read_text().strip()
    done = gossipdp("join", token)
    assert done.code == 2 and not started
    assert "an invite holds a secret" in done.err and "@FILE" in done.err and "GOSSIPDP_INVITE" in done.err
    assert token not in done.err


@pytest.mark.parametrize(
    "change", [lambda t: t[:-9], lambda t: t.replace("gdp1_", "gdp1_A"), lambda t: "", lambda t: t + "!"]
)
def test_a_damaged_invite_is_three_and_never_repeated(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path, change: Callable[[str], str]
) -> None:
    text = change((founder / "invite").read_text().strip())
    (tmp_path / "damaged").write_text(text)
    done = gossipdp("join", "@damaged", "--home", tmp_path / "j")
    assert done.code == 3 and not started
    assert re.match(r"GD-(206|31\d) ", done.err)
    assert not text or text[5:40] not in done.err


def test_an_invite_file_that_cannot_be_read_says_what_to_do(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    done = gossipdp("join", f"@{tmp_path}/nowhere")
    assert done.code == 3 and not started
    assert done.err.startswith("GD-206 the invite cannot be read\n  seen: ") and "\n  do:   name the file" in done.err


def test_an_invite_file_open_to_other_users__is_refused_as_a_key_would_be(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path
) -> None:
    assert gossipdp("invite", "--home", founder).code == 0
    (founder / "invite").chmod(0o644)
    done = gossipdp("--home", tmp_path / "joiner", "join", f"@{founder}/invite")
    assert (
        done.code == 3
        and done.err.startswith("GD-206 other users can read the invite, which is a secret\n")
        and not started
    )
    assert f"has mode 644\n  do:   chmod 600 {founder}/invite" in done.err
    (founder / "invite").chmod(0o600)
    assert gossipdp("--home", tmp_path / "joiner", "join", f"@{founder}/invite").code == 0 and started


def test_an_invite_cannot_set_what_a_host_decides(founder: Path) -> None:
    import base64

    token = (founder / "invite").read_text().partition(".")[0]
    hostile = base64.urlsafe_b64encode(b'[checkpoint]\ndir = "/"\n').decode().rstrip("=")
    with pytest.raises(ConfigError, match="its settings are damaged"):
        invites.read_invite(f"{token}.{hostile}")
    assert invites.read_invite(token).settings == "", "an invite without settings is whole"


def test_nothing_secret_is_printed_unless_asked_for(gossipdp: Run, founder: Path) -> None:
    done = gossipdp("invite", "--home", founder)
    token = (founder / "invite").read_text().strip()
    assert done.code == 0 and token not in done.out + done.err
    assert "gossipdp join @invite -- CMD" in done.out and "10.0.0.1:4710" in done.out
    assert (founder / "invite").stat().st_mode & 0o777 == 0o600
    assert token in gossipdp("invite", "--home", founder, "--show").out


def test_an_invite_without_daemon_or_address_is_four(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    gossipdp("up", "--home", tmp_path / "h", "--listen", "tcp://*:0")
    assert gossipdp("invite", "--home", tmp_path / "h").code == 4


def test_joining_again_after_a_rotation_takes_the_new_secret_and_never_an_older_one(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path
) -> None:
    old, secret = (founder / "invite").read_text(), NetworkSecret.load(founder)
    gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "j")
    secret.renewed(secret.generation + 1, bytes(range(32))).replace(founder)
    gossipdp("invite", "--home", founder)
    assert gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "j").code == 0
    assert NetworkSecret.load(tmp_path / "j").generation == secret.generation + 1
    (tmp_path / "old").write_text(old)
    (tmp_path / "old").chmod(0o600)
    assert gossipdp("join", f"@{tmp_path}/old", "--home", tmp_path / "j").code == 0
    assert NetworkSecret.load(tmp_path / "j").generation == secret.generation + 1


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
        (("--for", "a", "--expires", "soon"), "'soon' is not a time"),
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

    def member(_invite: HostInvite, identity: Identity, *, proxy: object) -> NetworkSecret:
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--expires", "2h"], "--expires does nothing without --for"),
        (["--uses", "3", "--show"], "--uses does nothing without --for"),
        (["--reason", "stolen"], "--reason does nothing without --revoke"),
        (["--list", "--uses", "1"], "--uses does nothing with --list"),
        (["--revoke", "gpu2", "--show"], "--show does nothing with --revoke"),
    ],
)
def test_invite_with_an_option_that_would_be_ignored__is_two_and_writes_nothing(
    gossipdp: Run, founder: Path, words: list[str], said: str
) -> None:
    before = (founder / "invite").stat().st_mtime_ns
    done = gossipdp("invite", *words, "--home", founder)
    assert done.code == 2 and said in done.err and not done.out
    assert (founder / "invite").stat().st_mtime_ns == before and not (founder / "invites").exists()


def test_invite_as_json__for_all_for_one_and_revoked(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    made = json.loads(gossipdp("invite", "--json", "--home", founder).out)
    assert made == {"path": str(founder / "invite"), "seeds": ["10.0.0.1:4710"]}
    shown = json.loads(gossipdp("invite", "--json", "--show", "--home", founder).out)
    assert shown["invite"] == (founder / "invite").read_text().strip()
    Office(monkeypatch, founder, {})
    one = json.loads(gossipdp("invite", "--json", "--for", "gpu2", "--uses", "3", "--home", founder).out)
    assert one["path"] == str(founder / "invites" / "gpu2") and one["uses"] == 3
    assert one["expires"] == host_invite(founder).decision.invite.expires
    revoked = json.loads(gossipdp("invite", "--json", "--revoke", "gpu2", "--home", founder).out)
    assert revoked == {"name": "gpu2", "let_in": []}
