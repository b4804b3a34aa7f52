"""Paths and modes of the link's socket."""

import os
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


def test_long_home_gets_a_short_path_in_a_private_directory(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 100)
    path = links.socket_path(home)
    assert len(os.fsencode(path)) <= 107 and path.parent == Path(f"/tmp/gossipdp-{os.geteuid()}")
    assert path != links.socket_path(tmp_path / ("y" * 100))
    server = links.LinkServer(home)
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    attached(server, home)
    server.close()
    assert not path.exists()


def test_directory_open_to_others_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = tmp_path / "public"
    public.mkdir(mode=0o755)
    monkeypatch.setattr(link_server, "socket_path", lambda home: public / "0.sock")
    with pytest.raises(HardwareError, match="not a directory of this user alone"):
        links.LinkServer(tmp_path)
    monkeypatch.setattr("gossipdp.runtime.link.client.socket_path", lambda home: public / "0.sock")
    with pytest.raises(UnreachableError, match="not a directory of this user alone"):
        links.Link.connect(tmp_path)


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
