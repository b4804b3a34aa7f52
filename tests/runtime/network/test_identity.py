"""Keys, the network secret, invites and the count of starts."""

import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from nacl import bindings

from gossipdp.errors import ConfigError, DataError
from gossipdp.runtime.network import invite as invites
from gossipdp.runtime.network.host_port import split_address
from gossipdp.runtime.network.identity import IDENTITY_FILE, SECRET_FILE, Identity, NetworkSecret, curve_public_key
from gossipdp.runtime.network.incarnation import INCARNATION_FILE, next_incarnation
from gossipdp.runtime.network.invite import HostInvite, Invite
from gossipdp.runtime.network.key_files import key_line, replace_file, write_new


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_identity_created_is_private_and_loads_as_the_same(tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = Identity.load_or_create(home)
    assert mode(home / IDENTITY_FILE) == 0o600
    assert mode(home) == 0o700
    assert os.listdir(home) == [IDENTITY_FILE]
    assert Identity.load_or_create(home).id == made.id == Identity.load(home).id
    assert len(made.id) == 32


def test_identity_never_replaced(tmp_path: Path) -> None:
    before = Identity.create(tmp_path)
    with pytest.raises(FileExistsError):
        Identity.create(tmp_path)
    assert Identity.load(tmp_path).id == before.id
    assert os.listdir(tmp_path) == [IDENTITY_FILE]


def test_missing_identity_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Identity.load(tmp_path)


def test_key_file_open_to_others_is_refused(tmp_path: Path) -> None:
    Identity.create(tmp_path)
    (tmp_path / IDENTITY_FILE).chmod(0o644)
    with pytest.raises(ConfigError, match=r"GD-206.*open to other users") as caught:
        Identity.load(tmp_path)
    assert "chmod 600" in caught.value.do


@pytest.mark.parametrize(
    "content",
    [b"", b"00", b"zz" * 32, b"00" * 33, b"00" * 32 + b" 00000000\n", key_line(bytes(32)).replace(b"0", b"1", 1)],
)
def test_damaged_key_file_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    write_new(tmp_path / IDENTITY_FILE, content)
    with pytest.raises(ConfigError, match=r"GD-206.*damaged") as caught:
        Identity.load(tmp_path)
    assert content == b"" or content.decode() not in str(caught.value).replace(str(tmp_path), "")


def test_key_file_without_a_checksum__as_an_earlier_version_wrote_it__loads(tmp_path: Path) -> None:
    write_new(tmp_path / SECRET_FILE, bytes(range(32)).hex().encode() + b"\n")
    assert NetworkSecret.load(tmp_path) == NetworkSecret(bytes(range(32)))
    NetworkSecret(bytes(32)).replace(tmp_path)
    assert NetworkSecret.load(tmp_path) == NetworkSecret(bytes(32))
    assert (tmp_path / SECRET_FILE).read_bytes() == key_line(bytes(32))


def test_key_that_is_a_folder__refused_as_unreadable(tmp_path: Path) -> None:
    (tmp_path / IDENTITY_FILE).mkdir(mode=0o700)
    with pytest.raises(ConfigError, match=r"GD-206 a key file cannot be read"):
        Identity.load_or_create(tmp_path)


def test_signature_holds_for_its_data_and_peer_only() -> None:
    one, other = Identity.generate(), Identity.generate()
    signature = one.sign(b"data")
    assert Identity.verify(one.id, b"data", signature)
    assert not Identity.verify(one.id, b"Data", signature)
    assert not Identity.verify(other.id, b"data", signature)
    assert not Identity.verify(one.id, b"data", signature[:-1])
    assert not Identity.verify(one.id[:-1], b"data", signature)
    assert not Identity.verify(b"", b"", b"")


def test_curve_key_follows_from_the_peer_id_alone() -> None:
    identity = Identity.generate()
    assert curve_public_key(identity.id) == identity.curve.public
    assert bindings.crypto_scalarmult_base(identity.curve.secret) == identity.curve.public


@pytest.mark.parametrize("garbage", [b"", b"\x01" * 31, b"\x00" * 32, b"\xff" * 32])
def test_curve_key_of_garbage_is_none(garbage: bytes) -> None:
    assert curve_public_key(garbage) is None


def test_server_keys_depend_on_the_secret_alone() -> None:
    value = bytes(range(32))
    keys = NetworkSecret(value).curve_server_keys()
    assert keys == NetworkSecret(value).curve_server_keys()
    assert keys != NetworkSecret.generate().curve_server_keys()
    assert keys.secret != value
    assert bindings.crypto_scalarmult_base(keys.secret) == keys.public
    assert keys.secret[0] % 8 == 0  # clamped, RFC 7748 section 5
    assert 64 <= keys.secret[31] < 128


def test_secret_file_is_private_and_loads_equal(tmp_path: Path) -> None:
    secret = NetworkSecret.generate()
    secret.save(tmp_path)
    assert mode(tmp_path / SECRET_FILE) == 0o600
    assert NetworkSecret.load(tmp_path) == secret
    with pytest.raises(FileExistsError):
        NetworkSecret.generate().save(tmp_path)


def test_nothing_secret_in_any_repr() -> None:
    secret, identity = NetworkSecret.generate(), Identity.generate()
    invite = Invite("tiny", secret, ("host:4710",))
    for shown in (secret, identity, invite, identity.curve, secret.curve_server_keys(), [invite]):
        text = f"{shown!r} {shown}"
        for hidden in (secret.reveal(), identity.curve.secret, secret.curve_server_keys().secret):
            assert hidden.hex() not in text
            assert repr(hidden)[2:-1] not in text
    with pytest.raises(TypeError, match="not pickled"):
        secret.__reduce__()


def test_invite_round_trip() -> None:
    invite = Invite("my-net.1", NetworkSecret.generate(), ("host.example:4710", "[2001:db8::1]:4711", "10.0.0.1:1"))
    text = invite.encode()
    assert text.isascii()
    assert " " not in text
    assert Invite.decode(text) == invite
    assert Invite.decode(f"  {text[:30]}\n{text[30:]}\n") == invite  # as a mail program may break it


def test_invite_that_is_nested_too_deep__is_refused() -> None:
    deep = msgspec.Raw(b"\x91" * 2500 + b"\xc0")
    decision = [1, 1, b"", "", "", 0, [], b"s" * 64, None, None, deep]  # as if a later version had one field more
    text = invites._encode("gdh1_", ["tiny", [], *4 * [b"k" * 32], decision])
    with pytest.raises(ConfigError, match="GD-206 this is not a complete invite\n  seen: the content is not that of"):
        HostInvite.decode(text)


def test_invite_damaged_anywhere_is_refused_and_not_repeated() -> None:
    invite = Invite("tiny", NetworkSecret.generate(), ("host:4710",))
    text = invite.encode()
    generator = random.Random(1)
    damaged = [
        text[:-1],
        text[1:],
        text + "A",
        "",
        "gdp1_",
        text[:20],
        text.upper(),
        "gdp1_" + "é" * 20,
        "gdp1_" + "A" * 9999,
    ]
    for _ in range(300):
        at = generator.randrange(len(text))
        letter = generator.choice("ABCDEFabcdef0123456789-_!")
        if letter != text[at]:
            damaged.append(text[:at] + letter + text[at + 1 :])
    for bad in damaged:
        try:
            decoded = Invite.decode(bad)
        except ConfigError as error:
            assert error.code == "GD-206"
            assert text[10:40] not in str(error)
        else:  # the last letter of base64 may hold unused bits
            assert decoded == invite
            assert bad[:-1] == text[:-1]


@pytest.mark.parametrize("name", ["", "a" * 49, "two words", "-dash", "new\nline", "../up"])
def test_invite_refuses_a_bad_network_name(name: str) -> None:
    with pytest.raises(ConfigError, match="GD-206"):
        Invite(name, NetworkSecret.generate())


@pytest.mark.parametrize(
    ("address", "expected"),
    [("host:1", ("host", 1)), ("[::1]:65535", ("::1", 65535)), ("10.0.0.1:4710", ("10.0.0.1", 4710))],
)
def test_split_address(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "::1:4710", "host:١", "h:9999999"]
)
def test_split_address_refuses(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        split_address(address)


def test_incarnation_counts_starts_and_survives(tmp_path: Path) -> None:
    assert [next_incarnation(tmp_path) for _ in range(3)] == [1, 2, 3]
    assert (tmp_path / INCARNATION_FILE).read_bytes() == b"3\n"
    assert os.listdir(tmp_path) == [INCARNATION_FILE]


def test_incarnation_is_synced_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), sync(descriptor))[1])
    monkeypatch.setattr(Path, "rename", lambda self, to: (calls.append("rename"), rename(self, to))[1])
    next_incarnation(tmp_path)
    assert calls == ["fsync", "rename", "fsync"]  # the file, its name, the directory


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"4294967295", b"\xff"])
def test_damaged_incarnation_is_an_error_not_a_new_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / INCARNATION_FILE).write_bytes(content)
    with pytest.raises(DataError, match="GD-603"):
        next_incarnation(tmp_path)


NEW = [Identity.create, NetworkSecret.generate().save]
REPLACED = [next_incarnation, lambda home: replace_file(home / "other", b"new")]


@pytest.mark.parametrize(
    ("write", "call"),
    [(write, call) for write in NEW for call in ("os.open", "os.fsync", "os.link")]
    + [(write, call) for write in REPLACED for call in ("os.open", "os.fsync", "pathlib.Path.rename")],
)
def test_failed_write_is_gd_602_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object], call: str
) -> None:
    (tmp_path / "other").write_bytes(b"old")
    (tmp_path / INCARNATION_FILE).write_bytes(b"7\n")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        monkeypatch.context() as patched,
        pytest.raises(DataError, match=r"GD-602 .* could not be written\n.*No space"),
    ):
        patched.setattr(call, full)
        write(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [INCARNATION_FILE, "other"]
    assert (tmp_path / "other").read_bytes() + (tmp_path / INCARNATION_FILE).read_bytes() == b"old7\n"


@pytest.mark.parametrize("write", [*NEW, REPLACED[1]])
def test_folder_that_cannot_be_made_is_gd_602(tmp_path: Path, write: Callable[[Path], object]) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(DataError, match=r"GD-602 .*home"):
        write(tmp_path / "home")
