"""Configuration: values with units, values out of range, and help for every key."""

import math
import re
import tomllib

import pytest

from gossipdp import config
from gossipdp.config import SECTIONS, Config, agreed
from gossipdp.config_help import HELP, Key, known_keys, section_help
from gossipdp.config_loading import load
from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import MAX_ADDRESS, Address
from peers import home


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("exchange.bandwidth", "100mbit", 12.5e6),
        ("exchange.bandwidth", "1.5 gbit", 187.5e6),
        ("exchange.bandwidth", "unlimited", math.inf),
        ("exchange.apart_rounds", "3", 3),
        ("checkpoint.every", "10m", 600),
        ("checkpoint.every", "1500ms", 1.5),
        ("checkpoint.every", "off", math.inf),
        ("safety.memory", "512MiB", 2**29),
        ("safety.memory", "2GB", 2e9),
        ("safety.clip", "off", "off"),
        ("safety.clip", "3", 3.0),
        ("safety.allow", f"{7:064x}, {8:064x}", (f"{7:064x}", f"{8:064x}")),
        ("safety.ban", "", ()),
        ("network.seeds", "a:1, [::1]:4710", ("a:1", "[::1]:4710")),
        ("network.seeds", "", ()),
        ("network.advertise", "1.2.3.4", ("1.2.3.4",)),
        ("network.advertise", "1.2.3.4, [2600::1]:4711", ("1.2.3.4", "[2600::1]:4711")),
        ("network.advertise", "none", ("none",)),
        ("network.listen", "tcp://[::]:0", "tcp://[::]:0"),
        ("network.proxy", "socks5://[::1]:1080", "socks5://[::1]:1080"),
        ("network.proxy", "", ""),
        ("network.proxy_login", "~/.proxy", "~/.proxy"),
        ("metrics.listen", "off", "off"),
        ("compute.workers", "auto", 0),
        ("compute.workers", "2", 2),
    ],
)
def test_a_text_is_read_with_its_unit(key: str, text: str, value: object) -> None:
    assert config.value_of(load(flags={key: text}), key) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("exchange.bits", "17"),
        ("exchange.bits", "4.0"),
        ("compute.workers", "0"),
        ("exchange.every", "0"),
        ("exchange.apart_rounds", "0"),
        ("exchange.apart_rounds", "1000001"),
        ("exchange.every", "9" * 400),
        ("exchange.bandwidth", "100"),
        ("exchange.bandwidth", "100Mbit"),
        ("exchange.bandwidth", "-1mbit"),
        ("exchange.weight", "nan"),
        ("outer.lr", "inf"),
        ("outer.momentum", "1"),
        ("checkpoint.every", "10"),
        ("checkpoint.every", "8d"),
        ("network.name", "../etc"),
        ("network.name", ""),
        ("network.listen", "*:4710"),
        ("network.listen", "tcp://*:65536"),
        ("network.proxy", "http://127.0.0.1:1"),
        ("network.proxy", "socks5://127.0.0.1"),
        ("network.proxy", "127.0.0.1:1"),
        ("network.proxy_login", "proxy"),
        ("network.seeds", "host"),
        ("network.seeds", "host:0"),
        ("network.advertise", "host:0"),
        ("network.advertise", "1.2.3.4,auto"),
        ("network.advertise", "a,b,c,d,e"),
        ("network.advertise", ","),
        ("safety.clip", "automatic"),
        ("safety.allow", "7" * 63),
        ("safety.ban", "G" * 64),
        ("checkpoint.dir", ""),
    ],
)
def test_a_value_out_of_range_is_refused(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"GD-311 flag: {key} = .* is not allowed\n  do:   {key} must be "):
        load(flags={key: text})


@pytest.mark.parametrize("host", ["gpu1..internal", ".internal", ".", "gpu1..", "g" * 64, f"gpu1.{'i' * 64}.net"])
@pytest.mark.parametrize("form", ["advertise={}", "advertise={}:4710", "listen=tcp://{}:4710", "seeds=a:1,{}:4710"])
def test_a_host_that_no_name_can_be_is_refused(form: str, host: str) -> None:
    key, _, text = form.format(host).partition("=")
    with pytest.raises(ConfigError, match=r"GD-311 .*\n  do:   .* 1 to 63 characters between dots"):
        load(flags={f"network.{key}": text})


@pytest.mark.parametrize("host", ["gpu1.internal.", "g" * 63, "g_1", "[fe80::1%eth0]", "127.0.0.1"])
def test_a_host_that_may_be_a_name_is_taken(host: str) -> None:
    assert load(flags={"network.advertise": f"{host}:4710"}).network.advertise == (f"{host}:4710",)


LONG = "internal." * 8
"""72 characters"""


@pytest.mark.parametrize(
    ("key", "text", "most"),
    [
        ("network.advertise", f"{LONG}{{}}", 2),
        ("network.advertise", f"{LONG}{{}}:4710", 3),
        ("network.seeds", f"a:1,{LONG}{{}}:4710", 3),
        ("network.listen", f"tcp://{LONG}{{}}:4710", 3),
        ("network.listen", f"tcp://{LONG}{{}}:0", 2),
    ],
)
def test_an_address_too_long_for_a_members_record_is_refused(key: str, text: str, most: int) -> None:
    """An address without a port leaves room for any port."""
    load(flags={key: text.format("x" * most)})
    with pytest.raises(ConfigError, match=f"GD-311 .*\n  do:   .* of at most {MAX_ADDRESS} characters"):
        load(flags={key: text.format("x" * (most + 1))})
    assert Address.__metadata__[0].max_length == MAX_ADDRESS  # type: ignore[attr-defined]


def test_a_number_in_quotes_is_refused_in_a_file_and_taken_from_a_flag() -> None:
    with pytest.raises(ConfigError):
        load('[exchange]\nbits = "4"\n')
    assert load(flags={"exchange.bits": "4"}).exchange.bits == 4
    with pytest.raises(ConfigError):
        load("[exchange]\nbits = true\n")


def test_early_rounds_end_after_two_fifths_of_a_run_of_known_length() -> None:
    assert load().exchange.early_until == 1000
    assert load(flags={"exchange.run_steps": "5000"}).exchange.early_until == 2000


@pytest.mark.parametrize(("clip", "factor"), [("auto", 1.5), ("off", math.inf), ("3.5", 3.5)])
def test_clip_as_a_factor(clip: str, factor: float) -> None:
    assert load(flags={"safety.clip": clip}).safety.clip_factor == factor


def test_memory_is_a_quarter_of_what_there_is_at_most_one_gibibyte() -> None:
    assert load().safety.memory_limit(2**31) == 2**29
    assert load().safety.memory_limit(2**40) == 2**30
    assert load(flags={"safety.memory": "3GiB"}).safety.memory_limit(2**31) == 3 * 2**30


KEYS = {key.name: key for key in known_keys()}


def test_every_key_has_help_in_the_order_of_a_dump_and_no_other_has() -> None:
    assert list(KEYS) == list(HELP) == ["preset", *config.RULES]


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_help_is_complete(key: Key) -> None:
    for text in (key.meaning, key.when):
        assert text.endswith(".") and "  " not in text, text
    for sentence in re.split(r"(?<=[.:]) ", f"{key.meaning} {key.when}"):
        assert len(sentence.split()) <= 25, sentence
    assert " if " in key.when or " to " in key.when or " after " in key.when, "no situation"
    assert key.range and tomllib.loads(f"x = {key.default}")
    assert re.fullmatch("GOSSIPDP_[A-Z_]+", key.variable)


def test_every_section_has_one_sentence() -> None:
    assert all(section_help(section).endswith(".") for section in SECTIONS)


def test_units_belong_to_quantities_only() -> None:
    assert KEYS["exchange.every"].unit == "steps" and KEYS["exchange.bandwidth"].unit == "bytes/second"
    assert KEYS["checkpoint.every"].unit == "seconds" and KEYS["checkpoint.every"].default == '"10m"'
    for key in KEYS.values():
        if key.range.startswith(("one of", "true", "a path")):
            assert key.unit == "", key


def test_keys_that_peers_share_are_those_of_the_digest() -> None:
    shared = {name for name, key in KEYS.items() if key.shared}
    assert shared == agreed(Config()).keys() - {"exchange.algorithm"}


def test_the_presets_are_those_of_the_package() -> None:
    assert set(re.findall(r'"(\w+)"', KEYS["preset"].range)) == set(home.presets())
