"""Configuration: precedence, units and error texts."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp import config
from gossipdp.algorithms.epidemic import robust
from gossipdp.codecs import CODECS, COMPRESSORS
from gossipdp.config import Config
from gossipdp.config_loading import load
from gossipdp.errors import ConfigError
from gossipdp.protocol.settings_digest import keys_apart
from gossipdp.protocol.wire.messages import Address
from gossipdp.protocol.wire.messages.base import MAX_ADDRESS

PRESETS = {"wan": "[exchange]\nwindow = 32\n", "local": '[exchange]\nevery = 30\n[membership]\ntiming = "local"\n'}


def test_no_source_at_all_gives_the_defaults() -> None:
    assert load() == Config()
    assert load().exchange.every == 50 and load().outer.momentum == 0.7


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
        ("network.advertise", "1.2.3.4", "1.2.3.4"),
        ("network.listen", "tcp://[::]:0", "tcp://[::]:0"),
        ("metrics.listen", "off", "off"),
    ],
)
def test_a_text_is_read_with_its_unit(key: str, text: str, value: object) -> None:
    assert config.value_of(load(flags={key: text}), key) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("exchange.bits", "17"),
        ("exchange.bits", "4.0"),
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
        ("network.seeds", "host"),
        ("network.seeds", "host:0"),
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
    assert load(flags={"network.advertise": f"{host}:4710"}).network.advertise == f"{host}:4710"


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


GOLDEN = {
    "[exchange]\n\nevry = 50\n": (
        "GD-312 run.toml:3: unknown key exchange.evry\n  do:   did you mean exchange.every?"
    ),
    "[exchange]\napart_round = 3\n": (
        "GD-312 run.toml:2: unknown key exchange.apart_round\n  do:   did you mean exchange.apart_rounds?"
    ),
    '[exchange]\ncontroller = "on"\n': (
        "GD-312 run.toml:2: unknown key exchange.controller\n  do:   did you mean exchange.compressor?"
    ),
    "[exchange]\nlr = 0.7\n": "GD-312 run.toml:2: unknown key exchange.lr\n  do:   did you mean outer.lr?",
    '[network]\npreset = "lan"\n': "GD-312 run.toml:2: unknown key network.preset\n  do:   did you mean preset?",
    "[exchnge]\n": "GD-312 run.toml:1: unknown section exchnge\n  do:   did you mean exchange?",
    "\n[zzz]\n": "GD-312 run.toml:2: unknown section zzz\n  do:   see `gossipdp config show` for all keys",
    "every = 5\n": "GD-312 run.toml:1: unknown key every\n  do:   see `gossipdp config show` for all keys",
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
    "[exchange]\nalgorithm = 'allreduce'\n": (
        'GD-311 run.toml:2: exchange.algorithm = "allreduce" is not allowed\n'
        '  do:   exchange.algorithm must be one of "auto", "pairwise", "epidemic"'
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


@pytest.mark.parametrize("text", GOLDEN)
def test_an_error_names_file_line_value_range_and_nearest_key(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, file="run.toml", presets=PRESETS)
    assert str(caught.value) == GOLDEN[text]
    assert caught.value.exit_code == 3


def test_an_unknown_variable_is_an_error_and_others_of_gossipdp_and_service_links_are_not() -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment={"GOSSIPDP_OUTER_RL": "1"})
    assert str(caught.value) == (
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
    assert lines["bits"] == "bits = 4 # default"
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


def test_auto_and_the_algorithm_it_means_agree() -> None:
    named = load(flags={"exchange.algorithm": "pairwise"})
    assert config.settings_digest(named) == config.settings_digest(load())


def test_the_digest_does_not_change_between_releases() -> None:
    assert config.settings_digest(Config()).hex() == "a5cc6b0aa7ff76325e2ec2d50fe2a07c"


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


def test_with_epidemic_peers_share_how_increments_travel_and_alpha_is_its_own() -> None:
    base = load(flags={"exchange.algorithm": "epidemic"})
    assert base.exchange.strategy == "epidemic" and base.lr == 2.0
    assert load().lr == load().outer.lr == 0.7
    assert config.settings_digest(base) != config.settings_digest(load())
    assert differing(base, load()) == ["exchange.algorithm"]
    for key, text in {
        "exchange.compressor": "topk64",
        "exchange.residual": "0.9",
        "exchange.epoch_steps": "40",
        "exchange.warmup_steps": "0",
        "outer.lr": "0.7",
    }.items():
        other = load(flags={"exchange.algorithm": "epidemic", key: text})
        assert differing(base, other) == [key]
    for key, text in {"exchange.kappa": "0", "outer.momentum": "0.5", "exchange.bits": "8"}.items():
        other = load(flags={"exchange.algorithm": "epidemic", key: text})
        assert config.settings_digest(other) == config.settings_digest(base)


def test_robust_rule_is_shared_and_has_an_alpha_of_its_own() -> None:
    flags = {"exchange.algorithm": "epidemic", "exchange.robust": "nnm-trimmed"}
    judged, base = load(flags=flags), load(flags={"exchange.algorithm": "epidemic"})
    assert (judged.exchange.rule, base.exchange.rule) == ("nnm-trimmed", "")
    assert (judged.lr, load(flags={**flags, "outer.lr": "0.5"}).lr) == (1.0, 0.5)
    assert differing(judged, base) == ["exchange.robust", "outer.lr"]
    assert differing(judged, load(flags={**flags, "exchange.robust_share": "0.3"})) == ["exchange.robust"]


@pytest.mark.parametrize("algorithm", ["auto", "pairwise"])
def test_robust_rule_that_would_not_be_applied_is_refused(algorithm: str) -> None:
    text = f'[exchange]\nalgorithm = "{algorithm}"\nrobust = "median"\n'
    with pytest.raises(ConfigError, match=r"peer\.toml:3: exchange\.robust"):
        load(text, file="peer.toml")


def test_robust_rule_is_not_waited_for() -> None:
    with pytest.raises(ConfigError, match=r"exchange\.mode"):
        load(flags={"exchange.algorithm": "epidemic", "exchange.robust": "median", "exchange.mode": "sync"})


def test_every_robust_rule_that_may_be_set_is_there() -> None:
    assert set(config.ROBUST_RULES) <= set(robust.RULES)


def test_every_compressor_may_be_set() -> None:
    assert set(config.COMPRESSORS) == set(COMPRESSORS)


def test_every_codec_may_be_set() -> None:
    """A new codec needs its name in `Exchange.codec`. Modulo codecs are set by `codec` and `bits`."""
    named, bits = config.RULES["exchange.codec"], config.RULES["exchange.bits"]
    modulo = {f"modulo{bits.read(width)}" for width in range(2, 17)}
    assert {str(named.read(name)) for name in CODECS.keys() - modulo} | modulo == set(CODECS)
