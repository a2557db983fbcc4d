"""A configured model of the Hub: its folder, its name, and what ``gatewayd doctor`` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.cli.doctor import checks, weights
from gatewayd.config.load import load
from gatewayd.config.tables import Config
from gatewayd.daemon.compose import compose
from gatewayd.daemon.options import DaemonOptions
from gatewayd.engines.replicas.launch import model_folder, served_name
from gatewayd.hub.pull import pull
from gatewayd.hub.reference import parse_reference
from gatewayd.hub.store import stored_path
from gatewayd.hub.store_locks import is_served
from gatewayd_engine.model import embedded
from tests.engine.core.small_model import small
from tests.engine.gguf_files import convert
from tests.engine.gguf_tokenizers import byte_level
from tests.gatewayd.hub.fake_hub import FakeHub, FakeRepo


def configured(path: str) -> Config:
    return load(None, {"model.path": path}).config


def test_a_model_in_the_store_is_checked_as_a_folder_is(hub: FakeHub, store: Path) -> None:
    config = configured("hf:org/draft")
    for check in (checks.model, weights.weights):
        finding = check(config)
        assert finding.state == "failure"
        assert "`gatewayd model pull org/draft` fetches it" in finding.text
    files = embedded.folder("nano-draft").iterdir()
    hub.repos["org/draft"] = FakeRepo({file.name: file.read_bytes() for file in files})
    pull(parse_reference("org/draft"), report=lambda _: None)
    assert [checks.model(config).state, weights.weights(config).state] == ["ok", "ok"]
    assert model_folder(config).is_relative_to(store)


def test_a_gguf_model_in_the_store_is_expanded(
    hub: FakeHub, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = small()
    (tmp_path / "made").mkdir()
    convert(source, tmp_path / "made", "llama", ("F32",), **byte_level(source))
    model = (tmp_path / "made" / "model.gguf").read_bytes()
    hub.repos["org/gguf"] = FakeRepo({"a-F32.gguf": model, "a-Q8_0.gguf": b"other"})
    pull(parse_reference("org/gguf:f32"), report=lambda _: None)
    config = configured("hf:org/gguf:F32")
    assert [checks.model(config).state, weights.weights(config).state] == ["ok", "ok"]
    (link,) = model_folder(config).glob("*.gguf")
    assert link.read_bytes() == model
    # Which one of two, the name does not say, whatever else is in the store.
    assert "several GGUF models" in checks.model(configured("hf:org/gguf")).text


@pytest.mark.parametrize(
    ("path", "name"),
    [("hf:org/a", "org/a"), ("hf:org/a@v1", "org/a"), ("hf:org/a:Q8_0", "org/a:Q8_0")],
)
def test_the_name_is_that_of_the_hub(path: str, name: str) -> None:
    assert served_name(configured(path)) == name


def test_a_start_finds_the_model_once(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = embedded.folder("nano-draft").iterdir()
    hub.repos["org/draft"] = FakeRepo({file.name: file.read_bytes() for file in files})
    pull(parse_reference("org/draft"), report=lambda _: None)
    found: list[str] = []

    def find(path: str) -> Path:
        found.append(path)
        return stored_path(path)

    monkeypatch.setattr("gatewayd.engines.replicas.launch.stored_path", find)
    config = load(None, {"model.path": "hf:org/draft", "server.port": 0}).config
    parts = compose(config, DaemonOptions(reload=lambda: config), lambda _: None)
    try:
        assert found == ["hf:org/draft"]
        assert is_served(stored_path("hf:org/draft"))
    finally:
        parts.listening.close()
        parts.durable.close()


def test_a_path_that_is_no_reference_is_one_sentence() -> None:
    finding = checks.model(configured("hf:llama"))
    assert (finding.state, "names no model of the Hub" in finding.text) == ("failure", True)
