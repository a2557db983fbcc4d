"""Tables of upstreams: what is refused and how, and that credentials are not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.config.catalogue import model_configs
from gatewayd.config.load import ConfigError, LoadedConfig, load
from gatewayd.plugins.loaded import check_strategies

MODELS = 'models = { far = "theirs" }\n'
URL = 'url = "http://127.0.0.1:9/v1"\n'


def loaded(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> LoadedConfig:
    file = tmp_path / "g.toml"
    file.write_text(text)
    return load(file, environ=environ or {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (URL, "upstreams.one.models: field required"),
        (URL + "models = {}", "at least 1 item"),
        (MODELS, 'give url = "http://..."'),
        (URL + MODELS + 'urls = ["http://b"]', 'give url = "http://..."'),
        (MODELS + 'urls = ["http://b", "http://b/"]', "an endpoint twice"),
        (MODELS + 'url = "ftp://b"', "must be http://HOST"),
        (MODELS + 'url = "/v1"', "must be http://HOST"),
        (MODELS + 'url = "http://b:x"', "it is no URL"),
        (MODELS + 'url = "http://me:word@b"', "use api_key"),
        (MODELS + 'url = "http://b/?a=1"', "no query"),
        (URL + MODELS + "conect_seconds = 1", "did you mean upstreams.one.connect_seconds?"),
        (URL + MODELS + "first_token_seconds = 0", "upstreams.one.first_token_seconds = 0"),
        (URL + 'models = { a = "b" }\n[models.a]\npath = "x"', "both have the name 'a'"),
        (URL + MODELS + "[upstreams.two]\n" + URL + MODELS, "both have the name 'far'"),
    ],
)
def test_an_invalid_upstream_is_refused_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, "[upstreams.one]\n" + text)
    assert any(said in problem for problem in caught.value.problems), caught.value.problems


def test_a_wrong_strategy_or_setting_is_a_problem(tmp_path: Path) -> None:
    text = "[upstreams.one]\n" + URL + MODELS
    assert not check_strategies(loaded(tmp_path, text).config)
    [problem] = check_strategies(loaded(tmp_path, text + 'strategy = "opnai"').config)
    assert "upstream.opnai" in problem
    [problem] = check_strategies(loaded(tmp_path, text + "settings = { no = 1 }").config)
    assert "upstreams.one.settings" in problem


def test_a_key_comes_from_a_credential_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "cloud").write_text("the-key")
    text = "[upstreams.one]\n" + URL + MODELS + 'api_key = "credential:cloud"\n'
    found = loaded(tmp_path, text, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert found.config.upstreams["one"].secret == "the-key"
    assert "the-key" not in str(found.settings()) + repr(found.config)
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text + "concurrency = 0", {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert "the-key" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, "[upstreams.one]\n" + URL + MODELS + "api_key = 5")
    assert "= 5" not in str(caught.value)


def test_upstreams_are_no_part_of_a_models_configuration(tmp_path: Path) -> None:
    text = "[upstreams.one]\n" + URL + MODELS + '[models.a]\npath = "x"\n[models.b]\npath = "y"\n'
    configs = model_configs(loaded(tmp_path, text).config)
    assert [one.name for one in configs] == ["a", "b"]
    assert not any(one.config.upstreams for one in configs)
