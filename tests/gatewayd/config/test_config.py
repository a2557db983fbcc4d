"""Configuration: precedence, origins, errors, and the reference ``etc/gatewayd.toml``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field

from gatewayd.config.catalogue import model_configs
from gatewayd.config.load import ConfigError, load
from gatewayd.config.models import MODEL_KEYS, MODEL_TABLES, ModelEntry
from gatewayd.config.routes import CandidateEntry, RouteEntry, problem_of
from gatewayd.config.tables import Config
from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.engines.replicas.launch import engine_config
from gatewayd.plugins.loaded import check_strategies
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import StrategyConfig

MANUAL = Path(__file__).parents[3] / "etc" / "gatewayd.toml"


def _uncommented() -> dict[str, Any]:
    """The manual with its optional keys, ``# key = value``, switched on."""
    text = re.sub(r"^# ([a-z0-9_]+ = .*)$", r"\1", MANUAL.read_text(), flags=re.MULTILINE)
    return tomllib.loads(text)


def _leaves(tree: dict[str, Any], table: str = "") -> dict[str, Any]:
    """Keys of tables in tables, with dots."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= (
            _leaves(value, f"{table}{key}.") if isinstance(value, dict) else {table + key: value}
        )
    return found


def test_the_manual_states_every_default() -> None:
    loaded = load(MANUAL, environ={})
    assert loaded.config == Config()
    stated = {key for key, origin in loaded.origins.items() if origin.startswith("file")}
    with_default = {
        key for key, default in _leaves(Config().model_dump()).items() if default is not None
    }
    assert stated == with_default


def test_the_manual_explains_every_key() -> None:
    assert set(_leaves(_uncommented())) == set(_leaves(Config().model_dump()))


def test_every_key_of_the_manual_has_a_comment_above_it() -> None:
    explained = False
    for line in MANUAL.read_text().splitlines():
        is_key = re.match(r"(# )?[a-z0-9_]+ = ", line)
        if is_key:
            assert explained, line
        elif line.startswith("#"):
            explained = True
        elif not line or line.startswith("["):
            explained = False


def test_the_examples_in_the_manual_are_valid(tmp_path: Path) -> None:
    text = re.sub(r"^# ([a-z0-9_]+ = .*)$", r"\1", MANUAL.read_text(), flags=re.MULTILINE)
    file = tmp_path / "all.toml"
    file.write_text(text)
    assert load(file, environ={}).config.engine.kv_pages == 4096


def test_the_example_of_a_catalogue_is_valid_and_has_each_key_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("\n".join(re.findall(r"^#   (.+)$", MANUAL.read_text(), flags=re.MULTILINE)))
    config = load(file, environ={}, needs_secrets=False).config
    (small,) = model_configs(config)
    assert (small.name, small.served_names) == ("small", ("default",))
    assert small.config.engine.kv_memory == 512 << 20
    own = set(ModelEntry.model_fields) - set(MODEL_TABLES) - set(MODEL_KEYS)
    assert own <= small_keys(file)
    (cluster,) = config.upstreams.values()
    assert set(UpstreamEntry.model_fields) - {"url"} == cluster.model_fields_set
    assert not check_strategies(config)


def test_the_example_of_a_route_is_valid_and_has_each_key_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "routes.toml"
    file.write_text("\n".join(re.findall(r"^#:  (.+)$", MANUAL.read_text(), flags=re.MULTILINE)))
    (route,) = load(file, environ={}).config.routes.values()
    assert route.settings(route.strategy) == {"on": ["overloaded", "unavailable", "lost"]}
    given = tomllib.loads(file.read_text())["routes"]["chat"]
    assert set(RouteEntry.model_fields) <= set(given)
    assert set(CandidateEntry.model_fields) == set(given["candidates"]["large"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('targets = ["a", "a"]', ": a is listed twice"),
        ("targets = []", "routes.r.targets = []: list should have at least 1 item"),
        ('target = ["a"]', "unknown key 'target'; there is strategy, targets, candidates"),
        (
            'targets = ["a"]\n[routes.r.candidates.a]\nquality = 2',
            "routes.r.candidates.a.quality = 2: input should be less than or equal to 1",
        ),
        (
            'targets = ["a"]\n[routes.r.candidates.a]\nqualty = 1',
            "unknown key routes.r.candidates.a.qualty",
        ),
    ],
)
def test_an_error_in_a_route_names_its_table(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "g.toml"
    file.write_text(f"[routes.r]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert any(said in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (
            {"targets": ["smal"]},
            "routes.r.targets: no model is named 'smal'; did you mean 'small'?",
        ),
        ({"targets": ["x"]}, "routes.r.targets: no model is named 'x'; there is small, r2"),
        (
            {"targets": ["small"], "candidates": {"r2": {}}},
            "routes.r.candidates: 'r2' is none of its targets; there is small",
        ),
        ({"targets": ["small", "r2"]}, ""),
    ],
)
def test_targets_must_be_served(route: dict[str, Any], said: str) -> None:
    assert problem_of("r", RouteEntry(**route), ["small", "r2"]) == said


def small_keys(file: Path) -> set[str]:
    return set(tomllib.loads(file.read_text())["models"]["small"])


def test_a_model_overrides_tables_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text(
        '[engine]\nthreads = 2\nseed = 7\n[scheduler]\nstrategy = "slo"\n'
        '[models.a]\npath = "a"\n[models.a.engine]\nthreads = 1\n'
        '[models.b]\npath = "b"\ndtype = "bfloat16"\n[models.b.scheduler]\nstrategy = "fair"\n'
    )
    a, b = model_configs(load(file, environ={}).config)
    assert (a.config.engine.threads, a.config.engine.seed) == (1, 7)
    assert (b.config.engine.threads, b.config.model.dtype) == (2, "bfloat16")
    assert [one.config.scheduler.strategy for one in (a, b)] == ["slo", "fair"]
    assert [one.config.model.path for one in (a, b)] == ["a", "b"]
    assert not a.config.models


def test_the_model_of_its_own_table_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[models.b]\npath = "b"\n[model]\npath = "a"\n')
    assert [one.name for one in model_configs(load(file, environ={}).config)] == [None, "b"]
    file.write_text('[model]\ndtype = "auto"\n[models.b]\npath = "b"\n')
    assert [one.name for one in model_configs(load(file, environ={}).config)] == ["b"]
    assert [one.name for one in model_configs(load(environ={}).config)] == [None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'path = "a"\n[models.a.engine]\nthreds = 1',
            "models.a.engine.threds; did you",
        ),
        ('path = "a"\n[models.a.engine]\nthreads = 0', "models.a.engine.threads = 0: input should"),
        ('pth = "a"', "unknown key models.a.pth; did you mean models.a.path?"),
        ('path = "a"\n[models.a.server]\nport = 1', "unknown key models.a.server"),
    ],
)
def test_an_error_in_a_model_names_its_table(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "g.toml"
    file.write_text(f"[models.a]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert any(said in problem for problem in caught.value.problems)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[server]\nhost = "10.0.0.1"\nport = 1\ndrain_seconds = 1.5\n')
    environ = {"GATEWAYD_SERVER__PORT": "2", "GATEWAYD_SERVER__HOST": "10.0.0.2"}
    loaded = load(file, {"server.port": 3}, environ)
    server = loaded.config.server
    assert (server.port, server.host, server.drain_seconds) == (3, "10.0.0.2", 1.5)
    origins = {s.key: s.origin for s in loaded.settings()}
    assert origins["server.port"] == "flag --port"
    assert origins["server.host"] == "environment GATEWAYD_SERVER__HOST"
    assert origins["server.drain_seconds"] == f"file {file}"
    assert origins["server.idle_seconds"] == "default"


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[engine]\nreplicas = 3\n")
    assert load(environ={"GATEWAYD_CONFIG": str(file)}).config.engine.replicas == 3


def test_the_api_key_is_never_printed() -> None:
    loaded = load(environ={"GATEWAYD_API_KEY": "swordfish"})
    key = loaded.config.server.api_key
    assert key is not None
    assert key.get_secret_value() == "swordfish"
    assert "swordfish" not in repr(loaded) + repr(loaded.settings())


def test_the_long_name_of_the_key_wins() -> None:
    both = {"GATEWAYD_API_KEY": "short-name", "GATEWAYD_SERVER__API_KEY": "long-name"}
    for environ in (both, dict(reversed(both.items()))):
        key = load(environ=environ).config.server.api_key
        assert key is not None
        assert key.get_secret_value() == "long-name"


def test_settings_of_a_plugin_that_cannot_be_loaded_are_hidden() -> None:
    loaded = load(environ={"GATEWAYD_ROUTER__MISSING__TOKEN": "swordfish"})
    shown = {s.key: s.value for s in loaded.settings()}
    assert shown["router.missing.token"] == "***"


def test_secrets_of_models_are_hidden_and_named_as_others_are(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text(
        "[models.a]\n"
        'path = "a"\n'
        "[models.a.logits_processor.watermark]\n"
        'secret = "in-the-file"\n'
        "gamma = 0.25\n"
        "[models.a.router.missing]\n"
        'token = "unknown"\n'
        '[models."b.1"]\n'
        'path = "b"\n'
        "[models.'b.1'.logits_processor.watermark]\n"
        'secret = "credential:mark"\n'
    )
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "mark").write_text("in-a-credential\n")
    loaded = load(file, environ={})
    shown = {setting.key: setting.value for setting in loaded.settings()}
    assert shown["models.a.logits_processor.watermark.secret"] == "***"
    assert shown["models.a.logits_processor.watermark.gamma"] == 0.25
    assert shown["models.a.router.missing.token"] == "***"
    assert shown["models.b.1.logits_processor.watermark.secret"] == "***"
    _, b = model_configs(loaded.config)
    assert b.config.logits_processor.settings("watermark") == {"secret": "in-a-credential"}


def test_a_secret_setting_of_a_plugin_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings(StrategyConfig):
        token: str = Field(default="", json_schema_extra={"reload": "secret"})
        depth: int = 1

    info = SimpleNamespace(config_type=Settings)
    monkeypatch.setattr(PluginHost, "info", lambda *_: info)
    environ = {"GATEWAYD_ROUTER__MINE__TOKEN": "swordfish", "GATEWAYD_ROUTER__MINE__DEPTH": "4"}
    shown = {s.key: s.value for s in load(environ=environ).settings()}
    assert (shown["router.mine.token"], shown["router.mine.depth"]) == ("***", "4")


def test_all_settings_of_chosen_strategies_are_shown_with_their_origins(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[scheduler]\nstrategy = "fair"\n[guide.llguidance]\ndepth = 9\n')
    environ = {"GATEWAYD_GUIDE__LLGUIDANCE__COMPILE_SECONDS": "2.5"}
    shown = {s.key: (s.value, s.origin) for s in load(file, environ=environ).settings()}
    assert shown["guide.llguidance.any_whitespace"] == (False, "default")
    assert shown["guide.llguidance.depth"] == (9, f"file {file}")
    assert shown["guide.llguidance.compile_seconds"] == (
        2.5,
        "environment GATEWAYD_GUIDE__LLGUIDANCE__COMPILE_SECONDS",
    )
    assert any(key.startswith("scheduler.fair.") for key in shown)
    assert any(key.startswith("protocol.ollama.") for key in shown)
    assert not any(key.startswith(("guide.xgrammar.", "scheduler.fcfs.")) for key in shown)


def test_settings_that_a_strategy_refuses_are_shown_as_they_are_given() -> None:
    environ = {"GATEWAYD_GUIDE__LLGUIDANCE__DEPTH": "deep"}
    shown = {s.key: s.value for s in load(environ=environ).settings()}
    assert [(key, shown[key]) for key in shown if key.startswith("guide.llguidance.")] == [
        ("guide.llguidance.depth", "deep")
    ]


def test_secrets_of_chosen_strategies_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings(StrategyConfig):
        token: str = Field(default="", json_schema_extra={"reload": "secret"})
        other: str = Field(default="a default", json_schema_extra={"reload": "secret"})
        depth: int = 1

    monkeypatch.setattr(PluginHost, "info", lambda *_: SimpleNamespace(config_type=Settings))
    environ = {"GATEWAYD_ROUTER__STRATEGY": "mine", "GATEWAYD_ROUTER__MINE__TOKEN": "swordfish"}
    shown = {s.key: s.value for s in load(environ=environ).settings()}
    mine = {key: shown[key] for key in shown if key.startswith("router.mine.")}
    assert mine == {"router.mine.token": "***", "router.mine.depth": 1}


def test_secrets_of_upstreams_strategies_are_hidden(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text(
        '[upstreams.u]\nurl = "http://u/v1"\nmodels = { x = "x" }\n'
        '[upstreams.u.settings]\napi_kee = "swordfish"\ncontinuous_usage = true\n'
        '[upstreams.w]\nurl = "http://w/v1"\nmodels = { y = "y" }\nstrategy = "missing"\n'
        'settings = { token = "swordfish" }\n'
    )
    shown = {one.key: one.value for one in load(file, environ={}).settings()}
    assert shown["upstreams.u.settings.api_kee"] == "***"
    assert shown["upstreams.u.settings.continuous_usage"] is True
    assert "swordfish" not in repr(shown)


def test_a_strategy_has_settings_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[scheduler]\nstrategy = "mine"\n[scheduler.mine]\nshare = 3\n')
    environ = {"GATEWAYD_SCHEDULER__MINE__DEPTH": "4"}
    scheduler = load(file, environ=environ).config.scheduler
    assert scheduler.settings("mine") == {"share": 3, "depth": "4"}
    assert scheduler.settings("other") == {}


def test_sizes_take_units() -> None:
    loaded = load(environ={"GATEWAYD_ENGINE__KV_MEMORY": "1.5GiB"})
    assert loaded.config.engine.kv_memory == 3 << 29


@pytest.mark.parametrize(("text", "kept"), [("256MiB", 256 << 20), ("0", 0), (None, None)])
def test_memory_can_be_kept_for_a_draft_model(text: str | None, kept: int | None) -> None:
    environ = {} if text is None else {"GATEWAYD_ENGINE__DRAFT_MEMORY": text}
    assert engine_config(load(environ=environ).config).draft_bytes == kept


@pytest.mark.parametrize(("text", "bound"), [("1GiB", 1 << 30), ("0", 0), (None, None)])
def test_copies_of_contexts_can_be_bounded(text: str | None, bound: int | None) -> None:
    environ = {} if text is None else {"GATEWAYD_ENGINE__COPY_MEMORY": text}
    assert engine_config(load(environ=environ).config).copy_bytes == bound


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1", "unknown key server.prot; did you mean server.port?"),
        ("[sever]\nport = 1", "unknown key sever; did you mean server?"),
        ("[server]\nport = 70000", "server.port = 70000: input should be less than or equal"),
        ("[model]\ndtype = 'int4'", "model.dtype = 'int4'"),
        ("[scheduler]\nstrategi = 'x'", "unknown key 'strategi'; there is strategy"),
        (
            "[logits_processor]\nstrategies = ['bias', 'bias']",
            "logits_processor.strategies = ['bias', 'bias']: bias is listed twice",
        ),
        (
            "[kv_tier]\nstrategies = ['host', 'disk', 'host']",
            "kv_tier.strategies = ['host', 'disk', 'host']: host is listed twice",
        ),
        ("[server\nport = 1", "is not TOML"),
        (
            "[engine]\ncpus = '0-3,x'",
            "engine.cpus = '0-3,x': 'x' is neither a CPU nor a range of CPUs; write a list such as",
        ),
        ("[engine]\ncpus = '7-4'", "the range 7-4 is empty: write 4-7"),
        (
            "[engine]\ncpus = '0-3'\nreplicas = 2\nthreads = 3",
            "cpus leaves 2 to each of 2 replicas, and each runs 3 threads: list more CPUs",
        ),
        ("[engine]\ncpus = '0'\nreplicas = 2", "cpus leaves 0 to each of 2 replicas"),
    ],
)
def test_a_bad_file_is_one_sentence_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    (problem,) = caught.value.problems
    assert message in problem
    assert str(file) in problem


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[server]\nport = -1\nprot = 2\n[engine]\nreplicas = 0\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert len(caught.value.problems) == 3


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(Path("/nowhere/g.toml"), environ={})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("GATEWAYD_SERVER__PROT", "1", "did you mean server.port?"),
        ("GATEWAYD_SREVER__PORT", "1", r"there is no table \[srever\]; did you mean server?"),
        ("GATEWAYD_LOGITS_PROCESSOR__STRATEGIES", "bias", "a list is written as"),
        ("GATEWAYD_API_KEY", "", "server.api_key: .* at least 8"),
    ],
)
def test_a_bad_variable_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(environ={name: value})
    assert "environment" in str(caught.value)


def test_a_class_is_promised_what_its_table_says() -> None:
    slo = load(environ={"GATEWAYD_SLO__BATCH__E2E_MS": "9000"}).config.slo
    assert (slo.batch.e2e_ms, slo.batch.ttft_ms, slo.batch.objective) == (9000.0, None, 0.99)
    assert slo.realtime.ttft_ms == 500.0
    with pytest.raises(ConfigError, match=r"slo\.batch\.objective = '1'"):
        load(environ={"GATEWAYD_SLO__BATCH__OBJECTIVE": "1"})
    with pytest.raises(ConfigError, match=r"did you mean slo\.batch\.e2e_ms"):
        load(environ={"GATEWAYD_SLO__BATCH__E2E": "1"})
