"""Paths and modes of the link's socket."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from gossipdp.config import Network
from gossipdp.errors import HardwareError, UnreachableError
from gossipdp.runtime import link as links
from gossipdp.runtime.link import server as link_server
from tests.runtime.link.training_process import SCHEMA, attached, pump


def test_socket_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        server = links.LinkServer(tmp_path / "new" / "home")
    finally:
        os.umask(before)
    status = os.stat(links.socket_path(tmp_path / "new" / "home"))
    assert stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "new" / "home").st_mode) == 0o700
    server.close()


def test_another_user_is_refused(server: links.LinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = links.Link.connect(tmp_path)
    monkeypatch.setattr(link_server, "user_of", lambda connection: os.geteuid() + 1)
    link.hello(SCHEMA)
    assert pump(server) == [] and len(server.filenos()) == 1
    assert link.receive() == [] and link.lost
    monkeypatch.setattr("gossipdp.runtime.link.client.user_of", lambda connection: os.geteuid() + 1)
    with pytest.raises(UnreachableError, match="served by user"):
        links.Link.connect(tmp_path)


def test_home_with_a_path_too_long_for_a_socket_holds_its_sockets_too(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 120)
    server = links.LinkServer(home)
    assert links.socket_path(home).is_socket() and links.expected(home)
    attached(server, home)
    with pytest.raises(HardwareError, match=r"GD-104.*\n.*a daemon is listening there"):
        links.LinkServer(home)
    server.close()
    assert not links.socket_path(home).exists()


@pytest.mark.parametrize("name", ["home", "x" * 120])
def test_daemon_whose_socket_was_deleted_listens_there_again(tmp_path: Path, name: str) -> None:
    server = links.LinkServer(tmp_path / name)
    links.socket_path(tmp_path / name).unlink()
    server.renew()
    attached(server, tmp_path / name)
    server.close()
    assert not links.socket_path(tmp_path / name).exists()


def test_daemon_leaves_a_socket_alone_that_another_one_made_there(tmp_path: Path) -> None:
    first = links.LinkServer(tmp_path)
    links.socket_path(tmp_path).unlink()
    second = links.LinkServer(tmp_path)
    first.renew()
    attached(second, tmp_path)
    first.close()
    second.close()


def test_home_that_was_deleted_ends_no_daemon(tmp_path: Path) -> None:
    server = links.LinkServer(tmp_path / "home")
    shutil.rmtree(tmp_path / "home")
    server.renew()
    server.close()


def test_the_default_home_follows_the_environment() -> None:
    assert links.default_home({"GOSSIPDP_HOME": "/a/b"}) == Path("/a/b")
    assert links.default_home({"GOSSIPDP_NETWORK_NAME": "tiny"}) == Path.home() / ".gossipdp" / "tiny"
    assert links.default_home({}) == Path.home() / ".gossipdp" / Network().name


def test_home_that_may_not_be_read_expects_no_daemon(tmp_path, monkeypatch):
    (tmp_path / "identity.key").touch()
    assert links.expected(tmp_path) and not links.expected(tmp_path / "none")

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    assert not links.expected(tmp_path)
