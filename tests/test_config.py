"""Configuration: precedence of its sources, environment variables, error texts, dumps, and what peers must share."""

import ipaddress
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp import config
from gossipdp.codecs import CODECS
from gossipdp.config import Config
from gossipdp.config_loading import REMOVED, load, variable_of
from gossipdp.errors import ConfigError
from gossipdp.protocol.settings_digest import keys_apart

PRESETS = {"wan": "[exchange]\nwindow = 32\n", "local": '[exchange]\nevery = 30\n[membership]\ntiming = "local"\n'}


def test_no_source_at_all_gives_the_defaults() -> None:
    assert load() == Config()
    assert load().exchange.every == 50 and load().outer.momentum == "auto"


def test_metrics_listen_on_loopback_unless_configured_otherwise() -> None:
    assert ipaddress.ip_address(Config().metrics.listen.rpartition(":")[0]).is_loopback


def test_flag_beats_environment_beats_file_beats_preset_beats_default() -> None:
    file, environment = "[exchange]\nevery = 3\n", {"GOSSIPDP_EXCHANGE_EVERY": "4"}
    flags = {"exchange.every": "5"}
    local = {**flags, "preset": "local"}
    assert load(file, environment=environment, flags=local, presets=PRESETS).exchange.every == 5
    assert load(file, environment=environment, flags={"preset": "local"}, presets=PRESETS).exchange.every == 4
    assert load(file, flags={"preset": "local"}, presets=PRESETS).exchange.every == 3
    assert load(flags={"preset": "local"}, presets=PRESETS).exchange.every == 30
    assert load(presets=PRESETS).exchange.every == 50


def test_the_preset_comes_from_flag_environment_or_file() -> None:
    file = 'preset = "local"\n'
    assert load(presets=PRESETS).preset == "wan" and load(presets=PRESETS).exchange.window == 32
    assert load(file, presets=PRESETS).membership.timing == "local"
    assert load(file, environment={"GOSSIPDP_PRESET": "wan"}, presets=PRESETS).preset == "wan"
    assert load(file, environment={"GOSSIPDP_PRESET": "lan"}, flags={"preset": "wan"}, presets=PRESETS).preset == "wan"


GOLDEN = {
    "[exchange]\n\nevry = 50\n": (
        "GD-312 run.toml:3: unknown key exchange.evry\n  do:   did you mean exchange.every?"
    ),
    "[exchange]\napart_round = 3\n": (
        "GD-312 run.toml:2: unknown key exchange.apart_round\n  do:   did you mean exchange.apart_rounds?"
    ),
    '[exchange]\ncontroller = "on"\n': (
        "GD-312 run.toml:2: unknown key exchange.controller\n  do:   did you mean exchange.codec?"
    ),
    "[exchange]\nlr = 0.7\n": "GD-312 run.toml:2: unknown key exchange.lr\n  do:   did you mean outer.lr?",
    '[network]\npreset = "lan"\n': "GD-312 run.toml:2: unknown key network.preset\n  do:   did you mean preset?",
    "[exchnge]\n": "GD-312 run.toml:1: unknown section exchnge\n  do:   did you mean exchange?",
    "\n[zzz]\n": "GD-312 run.toml:2: unknown section zzz\n  do:   see `gossipdp config show` for all keys",
    "every = 5\n": "GD-312 run.toml:1: unknown key every\n  do:   did you mean exchange.every or checkpoint.every?",
    "exchange = 5\n": "GD-311 run.toml:1: exchange = 5 is not allowed\n  do:   exchange must be a section: [exchange]",
    "[exchange]\nevery = 50\nbits = 40\n": (
        "GD-311 run.toml:3: exchange.bits = 40 is not allowed\n"
        "  do:   exchange.bits must be a whole number from 2 to 16"
    ),
    "[exchange] # all\n  bandwidth='fast'\n": (
        'GD-311 run.toml:2: exchange.bandwidth = "fast" is not allowed\n'
        '  do:   exchange.bandwidth must be a rate from 1mbit to 1000gbit or "unlimited"'
    ),
    '[checkpoint]\nevery = "10 minutes"\n': (
        'GD-311 run.toml:2: checkpoint.every = "10 minutes" is not allowed\n'
        '  do:   checkpoint.every must be a time from 1s to 7d or "off"'
    ),
    '[safety]\nmemory = "1B"\n': (
        'GD-311 run.toml:2: safety.memory = "1B" is not allowed\n'
        '  do:   safety.memory must be a size from 16MiB to 16384GiB or "auto"'
    ),
    '[network]\nseeds = ["a:1", "b"]\n': (
        'GD-311 run.toml:2: network.seeds = ["a:1", "b"] is not allowed\n'
        '  do:   network.seeds must be a list of at most 64, each "host:port"'
    ),
    "[exchange]\npartners = 'nearest'\n": (
        'GD-311 run.toml:2: exchange.partners = "nearest" is not allowed\n'
        '  do:   exchange.partners must be one of "hypercube", "base2", "random"'
    ),
    "[safety]\nclip = 0.5\n": (
        "GD-311 run.toml:2: safety.clip = 0.5 is not allowed\n"
        '  do:   safety.clip must be a number from 1 to 1000 or "auto" or "off"'
    ),
    'preset = "moon"\n': (
        'GD-311 run.toml:1: preset = "moon" is not allowed\n  do:   preset must be one of "wan", "local"'
    ),
    "[network]\nname = tiny\n": (
        "GD-310 run.toml:2 is not valid TOML\n"
        "  seen: Invalid value\n"
        "  do:   put texts in quotes, and one key on a line"
    ),
    "[network\n": (
        "GD-310 run.toml:1 is not valid TOML\n"
        "  seen: Expected ']' at the end of a table declaration\n"
        "  do:   put texts in quotes, and one key on a line"
    ),
}  # fmt: skip


@pytest.mark.parametrize("password", ["S3cret", "S3c:ret", "S3cr@et", "S3cret//", "S3cret" * 30])
def test_login_in_the_address_of_a_proxy_is_refused_and_never_shown(password: str) -> None:
    address = f"socks5://user:{password}@127.0.0.1:1080"
    for text, flags in ((f"[network]\nproxy = {address!r}\n", {}), ("", {"network.proxy": address})):
        with pytest.raises(ConfigError) as caught:
            load(text, flags=flags)
        told = str(caught.value)
        assert 'network.proxy = "socks5://...@127.0.0.1:1080" is not allowed' in told and "network.proxy_login" in told
        assert "S3c" not in told and "user:" not in told


@pytest.mark.parametrize("text", GOLDEN)
def test_an_error_names_file_line_value_range_and_nearest_key(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, file="run.toml", presets=PRESETS)
    assert str(caught.value).partition("\n  more: ")[0] == GOLDEN[text]
    assert caught.value.exit_code == 3


def test_an_unknown_variable_is_an_error_and_others_of_gossipdp_and_service_links_are_not() -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment={"GOSSIPDP_OUTER_RL": "1"})
    assert str(caught.value).partition("\n  more: ")[0] == (
        "GD-312 environment: unknown variable GOSSIPDP_OUTER_RL\n  do:   did you mean GOSSIPDP_OUTER_LR?"
    )
    for variable, near in (
        ("GOSSIPDP_EXCHNGE_EVERY", "did you mean GOSSIPDP_EXCHANGE_EVERY?"),
        ("GOSSIPDP_METRIC_LISTEN", "did you mean GOSSIPDP_METRICS_LISTEN?"),
        ("GOSSIPDP_HOMES", "did you mean GOSSIPDP_HOME?"),
    ):
        with pytest.raises(ConfigError, match="GD-312") as caught:
            load(environment={variable: "1"})
        assert caught.value.do == near
    for variable in ("GOSSIPDP_VERSION", "GOSSIPDP_RANK", "GOSSIPDP_DEBUG", "GOSSIPDP_NAME", "GOSSIPDP_SECRET"):
        with pytest.raises(ConfigError, match="GD-312") as caught:
            load(environment={variable: "1"})
        assert caught.value.do == "see `gossipdp config show` for all keys", "what all begin with counts not"
    harmless = {"GOSSIPDP_HOME": "/x", "GOSSIPDP_OFF": "1", "GOSSIPDP_INVITE": "?", "PATH": "/bin"}
    harmless |= {"GOSSIPDP_ATTEMPT": "1", "GOSSIPDP_CHILD": "x", "GOSSIPDP_KILL_AT": "x"}
    kubernetes = {
        "GOSSIPDP_PORT": "tcp://10.0.0.1:80",
        "GOSSIPDP_RUN_7_SERVICE_PORT_HTTP": "80",
        "GOSSIPDP_METRICS_PORT": "tcp://10.0.0.1:80",
        "GOSSIPDP_METRICS_SERVICE_HOST": "10.0.0.1",
    }
    assert load(environment=harmless | kubernetes | {"GOSSIPDP_METRICS_PORT_80_TCP_ADDR": "10.0.0.1"}) == Config()


def test_a_wrong_variable_is_named_with_its_value() -> None:
    with pytest.raises(
        ConfigError, match=r"^GD-311 environment GOSSIPDP_OUTER_LR: outer\.lr = \"much\" is not allowed"
    ):
        load(environment={"GOSSIPDP_OUTER_LR": "much"})


def test_a_dump_says_where_each_value_came_from_and_loads_again() -> None:
    original = load(
        '[network]\nname = "tiny"\n',
        file="run.toml",
        environment={"GOSSIPDP_OUTER_LR": "0.5"},
        flags={"checkpoint.every": "90s", "exchange.bandwidth": "25mbit", "safety.memory": "64MiB"},
        presets=PRESETS,
    )
    text = config.dump(original)
    lines = {line.partition(" ")[0]: " ".join(line.split()) for line in text.splitlines() if "=" in line}
    assert lines["name"] == 'name = "tiny" # run.toml:2'
    assert lines["lr"] == "lr = 0.5 # environment GOSSIPDP_OUTER_LR"
    assert lines["bandwidth"] == 'bandwidth = "25mbit" # flag'
    assert lines["window"] == "window = 32 # preset wan"
    assert lines["bits"] == "bits = 3 # default"
    again = load(text, presets=PRESETS)
    assert all(getattr(again, name) == getattr(original, name) for name in config.SECTIONS)


def test_every_default_is_allowed_by_its_own_rule_and_dumped() -> None:
    parsed = tomllib.loads(config.dump(Config()))
    for key, rule in config.RULES.items():
        section, _, name = key.partition(".")
        assert rule.read(parsed[section][name]) == config.value_of(Config(), key)


@settings(derandomize=True)
@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    try:
        load(text, file="f")
    except ConfigError as error:
        assert error.code in ("GD-310", "GD-311", "GD-312")


@settings(derandomize=True)
@given(st.sampled_from(sorted(config.RULES)), st.text(max_size=30))
def test_any_flag_value_is_taken_and_shown_or_refused(key: str, text: str) -> None:
    try:
        loaded = load(flags={key: text})
    except ConfigError as error:
        assert error.code == "GD-311"
    else:
        shown = config.RULES[key].show(config.value_of(loaded, key))
        value = tomllib.loads(f"x = {shown}")["x"]
        again, first = config.RULES[key].read(value), config.value_of(loaded, key)
        assert again == (pytest.approx(first, rel=1e-9) if isinstance(first, float) else first)


def test_what_peers_must_share_is_in_the_digest_and_the_rest_is_not() -> None:
    base = load()
    assert len(config.settings_digest(base)) == 16
    for key, text in {
        "exchange.every": "7",
        "exchange.bits": "8",
        "network.name": "x",
        "exchange.bandwidth": "1mbit",
    }.items():
        other = load(flags={key: text})
        assert config.settings_digest(other) == config.settings_digest(base)
    for key, text in {
        "outer.lr": "0.6",
        "outer.momentum": "0",
        "exchange.kappa": "0",
        "exchange.weight": "0.4",
    }.items():
        other = load(flags={key: text})
        assert config.settings_digest(other) != config.settings_digest(base)
        assert differing(base, other) == [key]


def differing(one: Config, other: Config) -> list[str]:
    """The differing keys, as a peer finds them."""
    return keys_apart(config.settings_digest(one), config.settings_digest(other), tuple(config.agreed(one)))


def test_the_digest_does_not_change_between_releases() -> None:
    assert config.settings_digest(Config()).hex() == "46517e13a7ff76325e2ec2d5f710b057"


def test_every_codec_may_be_set() -> None:
    """A new codec needs its name in `Exchange.codec`. Modulo codecs are set by `codec` and `bits`."""
    named, bits = config.RULES["exchange.codec"], config.RULES["exchange.bits"]
    modulo = {f"modulo{bits.read(width)}" for width in range(2, 17)}
    assert {str(named.read(name)) for name in CODECS.keys() - modulo} | modulo == set(CODECS)


@pytest.mark.parametrize("key", REMOVED)
def test_removed_key_with_a_value_that_changes_nothing_is_passed_over_and_named(key: str) -> None:
    section, _, name = key.partition(".")
    for value in REMOVED[key]:
        text = value if value[0].isdigit() else f'"{value}"'
        config_file = load(f"[{section}]\n{name} = {text}\n", file="run.toml")
        assert config_file.removed == {key: "run.toml:2"} and config_file.exchange == config.Exchange()
        assert load(flags={key: value}).removed == {key: "flag"}
        variable = variable_of(key)
        assert load(environment={variable: value}).removed == {key: f"environment {variable}"}
        assert config.settings_digest(config_file) == config.settings_digest(load())


@pytest.mark.parametrize("text", ['algorithm = "epidemic"', 'robust = "median"', "epoch_steps = 40", "residual = true"])
def test_removed_key_with_another_value_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(ConfigError, match=r"GD-312 peer\.toml:2: exchange\.\w+ = .* does not have\n  do:   remove"):
        load(f"[exchange]\n{text}\n", file="peer.toml")


def test_toml_that_is_nested_too_deep__is_no_valid_toml() -> None:
    with pytest.raises(ConfigError, match=r"GD-310 run\.toml is not valid TOML\n  seen: it is nested too deep"):
        load(f"[network]\nname = {'[' * 20_000}{']' * 20_000}\n", file="run.toml", presets={})
