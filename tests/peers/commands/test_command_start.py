"""What `up` and `join` say: what they start, and how to write a command that was almost right."""

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.network.addresses import Choice
from peers import advertising
from peers.commands import start
from peers.home import read_config
from peers.invites import read_invite
from tests.peers.commands.running import Run


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python` and `torchrun` on the PATH, and no other program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "torchrun"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`choose(choice)`: the addresses of this host."""

    def replace(choice: Choice) -> None:
        monkeypatch.setattr(advertising, "choose", lambda *_: choice)

    return replace


# -- commands that are almost right ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "corrected"),
    [
        ("join @invite python train.py", "join @invite -- python train.py"),
        ("join @invite torchrun --nproc-per-node 8 train.py", "join @invite -- torchrun --nproc-per-node 8 train.py"),
        ("join @invite --peer a --verbose python t.py -- x", "join @invite --peer a --verbose -- python t.py -- x"),
        ("join @invite mytrainer --fast", "join @invite -- mytrainer --fast"),
        ("join python train.py", "join -- python train.py"),
        ("up python train.py", "up -- python train.py"),
        ("up run.toml python train.py", "up run.toml -- python train.py"),
        ("up --set exchange.every=5 --preset=lan torchrun", "up --set exchange.every=5 --preset=lan -- torchrun"),
        ("up train.py --lr 1", "up -- python train.py --lr 1"),
        ("--home h up python train.py", "--home h up -- python train.py"),
    ],
)
def test_a_missing_separator_is_shown_in_the_corrected_line(
    gossipdp: Run, started: list[Any], given: str, corrected: str
) -> None:
    done = gossipdp(*given.split())
    assert done.code == 2 and not started
    assert done.err.endswith(f"Error: write -- before the training command:\n\n  gossipdp {corrected}\n")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("up a.toml b.toml", "unexpected extra argument"),
        ("up --bogus python", "No such option"),
        ("up @invite", "`up` takes no invite: use gossipdp join @invite -- CMD"),
    ],
)
def test_other_mistakes_keep_their_own_words(gossipdp: Run, started: list[Any], given: str, told: str) -> None:
    done = gossipdp(*given.split())
    assert done.code == 2 and not started and told in done.err


def test_a_file_without_its_at_sign_is_recognized(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "invite").write_text("gdp1_secret")
    assert "did you mean @invite?" in gossipdp("join", "invite").err
    assert "did you mean @invite?" in gossipdp("join").err and not started
    assert "did you mean" not in gossipdp("join", "gdp1_" + "a" * 3000).err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_what_join_waits_for(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (founder / "invite").read_text()
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    done = gossipdp("join", "-", "--home", tmp_path / "one")
    assert done.err.startswith("Paste the invite here, then press Enter and Ctrl-D.\n") and len(started) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert "Paste" not in gossipdp("join", "-", "--home", tmp_path / "two").err


def test_a_home_whose_daemon_runs_is_left_as_it_is(
    gossipdp: Run, started: list[Any], answering: Any, founder: Path, tmp_path: Path
) -> None:
    (tmp_path / "invite").write_text((founder / "invite").read_text())
    (tmp_path / "invite").chmod(0o600)
    answering(founder, {})
    before = {path: path.read_bytes() for path in founder.iterdir() if path.is_file()}
    for words in (["join", "@invite"], ["up"], ["up", "run.toml"]):
        done = gossipdp(*words, "--home", founder)
        assert done.code == 7 and done.err.startswith("GD-104 a daemon already runs for this home\n") and not started
        assert "--home DIR --listen tcp://*:4711" in done.err
    assert {path: path.read_bytes() for path in before} == before


# -- what is started ---------------------------------------------------------------------------------------------


def rows(text: str) -> dict[str, str]:
    """The labelled rows of an announcement, unwrapped."""
    whole = re.sub(r"\n {8,}", " ", text)
    return dict(re.findall(r"^  (\w+) +(.*)$", whole, re.M))


def announced(gossipdp: Run, *words: str) -> dict[str, str]:
    done = gossipdp("up", "--network", "tiny", *words)
    assert done.code == 0, done.err
    return rows(done.err)


def test_a_founder_says_network_settings_addresses_and_what_comes_next(
    gossipdp: Run, started: Sequence[Any], tmp_path: Path, choose: Any
) -> None:
    choose(Choice(("10.0.0.5:4711", "[fd00::5]:4711"), "its first address"))
    (tmp_path / "run.toml").write_text('preset = "wan"\n[exchange]\nevery = 30\n')
    done = gossipdp("up", "run.toml", "--network", "tiny", "--set", "outer.lr=0.5", "--listen", "tcp://*:4711")
    assert done.err.splitlines()[0] == f"founding network tiny; home {tmp_path}/user/.gossipdp/tiny"
    assert max(map(len, done.err.splitlines()[1:])) <= 80 and len(done.err.splitlines()) <= 10
    said = rows(done.err)
    assert said["preset"] == "wan" and said["next"] == "`gossipdp invite` lets another host join"
    assert said["settings"] == 'exchange.every = 30; outer.lr = 0.5; network.listen = "tcp://*:4711"'
    assert said["address"] == "10.0.0.5:4711, [fd00::5]:4711 (its first address)"
    assert (
        said["warning"].startswith("The invite will hold only private addresses") and "--advertise" in said["warning"]
    )


def test_the_invite_is_there_before_the_lines_that_name_it_are_printed(
    gossipdp: Run, started: Sequence[Any], tmp_path: Path, choose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(Choice(("10.0.0.5:4710", "[fd00::5]:4710"), "its first address"))
    file, there = tmp_path / "h" / "invite", []
    monkeypatch.setattr(start, "_print", lambda lines, log_format: there.append(file.is_file()))
    assert gossipdp("up", "--network", "tiny", "--home", tmp_path / "h").code == 0
    assert there == [True] and read_invite(file.read_text()).invite.seeds == ("10.0.0.5:4710", "[fd00::5]:4710")
    shown = gossipdp("invite", "--home", tmp_path / "h").out
    assert "first dialled:  10.0.0.5:4710, [fd00::5]:4710" in shown, "the daemon does not listen yet"


@pytest.mark.parametrize(
    ("choice", "words", "warning"),
    [
        (Choice(("127.0.0.1:4710",), "-"), [], "only loopback addresses"),
        (Choice(("10.0.0.5:4710", "8.8.8.8:4710"), "-"), [], ""),
        (Choice(("10.0.0.5:4710",), "-"), ["--preset", "lan"], ""),
        (Choice(("127.0.0.1:4710",), "-"), ["--preset", "lan"], "only loopback addresses"),
        (Choice(("10.0.0.5:4710",), "-"), ["--advertise", "10.0.0.5"], ""),
        (Choice(("10.0.0.5:4710",), "-", "no port is mapped; map one"), [], "no port is mapped; map one."),
        (Choice((), "-"), ["--listen", "off"], "No other host can join: this peer only dials out."),
        (Choice(("10.0.0.5:4710",), "-"), ["--advertise", "none"], "this peer only dials out"),
        (Choice(("10.0.0.5:4710",), "-"), ["--listen", "tcp://*:0"], ""),
    ],
)
def test_a_founder_is_warned_where_others_cannot_dial_its_addresses(
    gossipdp: Run, started: Sequence[Any], choose: Any, choice: Choice, words: list[str], warning: str
) -> None:
    choose(choice)
    said = announced(gossipdp, *words)
    assert warning in said["warning"] if warning else "warning" not in said


def test_a_founder_that_asks_its_router_is_told_where_to_look(
    gossipdp: Run, started: Sequence[Any], choose: Any
) -> None:
    choose(Choice(("10.0.0.5:4710",), "-"))
    said = announced(gossipdp, "--set", "network.nat=auto")
    assert said["router"].startswith("asked for a port") and "warning" not in said


def test_a_home_that_belongs_to_a_run_continues(gossipdp: Run, started: Sequence[Any], founder: Path) -> None:
    assert gossipdp("up", "--home", founder).err.startswith("founding network tiny; home ")
    (founder / "run").write_bytes(b"x")
    done = gossipdp("up", "--home", founder)
    assert done.err.startswith(f"continuing in network tiny; home {founder}\n") and "address" not in rows(done.err)
    assert f"`gossipdp --home {founder} invite`" in " ".join(done.err.split())


def test_a_later_start_has_the_addresses_that_flags_gave_before(
    gossipdp: Run, started: Sequence[Any], founder: Path, tmp_path: Path
) -> None:
    """Two hosts that others knew by port 4720 came back on 4710, and each trained alone."""
    home = tmp_path / "j"
    flags = ["--listen", "*:4720", "--advertise", "203.0.113.9:33526", "--set", "exchange.window=16"]
    login = home.with_name("login")
    login.write_text("user:password")
    login.chmod(0o600)
    proxy = ["--set", "network.proxy=socks5://127.0.0.1:1080", "--set", f"network.proxy_login={login}"]
    gossipdp("join", f"@{founder}/invite", "--home", home, *flags)
    said = rows(gossipdp("up", "--home", home).err)
    assert said["kept"] == 'listen = "tcp://*:4720"; advertise = "203.0.113.9:33526": a flag of an earlier start'
    gossipdp("join", f"@{founder}/invite", "--home", home)
    network = read_config(home).network
    assert (network.listen, network.advertise) == ("tcp://*:4720", ("203.0.113.9:33526",))
    assert read_config(home).exchange.window != 16
    gossipdp("up", "--home", home, "--listen", "tcp://*:4711", "--advertise", "auto")
    assert rows(gossipdp("up", "--home", home).err)["kept"].startswith('listen = "tcp://*:4711"; advertise = "auto"')
    gossipdp("up", "--home", home, *proxy)
    network = read_config(home).network
    assert (network.proxy, network.proxy_login) == ("socks5://127.0.0.1:1080", str(login))
    (home / "run.toml").write_text('[network]\nlisten = "tcp://*:4999"\n')
    assert read_config(home).network.listen == "tcp://*:4999", "the operator's own file counts for more"


def test_a_joiner_says_which_address_it_dials_first(
    gossipdp: Run, started: Sequence[Any], founder: Path, tmp_path: Path
) -> None:
    done = gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "j")
    assert done.err.startswith(f"joining network tiny; home {tmp_path}/j\n")
    assert rows(done.err)["seeds"] == "10.0.0.1:4710"
    assert gossipdp("up", "--home", tmp_path / "j").err.startswith("continuing in network tiny; home ")
