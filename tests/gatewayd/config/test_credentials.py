"""Credentials: secrets named by the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.config.load import ConfigError, load

SECRET = "a-secret-of-32-bytes-and-no-fewer"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "g.toml"
    path.parent.mkdir()
    path.write_text('[server]\napi_key = "credential:api-key"\n')
    return path


def _put(folder: Path, text: str, name: str = "api-key") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def _key(file: Path, environ: dict[str, str]) -> str:
    key = load(file, environ=environ).config.server.api_key
    assert key is not None
    return key.get_secret_value()


def test_systemds_credential_comes_before_the_one_beside_the_file(
    file: Path, tmp_path: Path
) -> None:
    _put(file.parent / "credentials", f"{SECRET}\n")
    assert _key(file, {}) == SECRET
    given = _put(tmp_path / "given", "the-other-one\n")
    assert _key(file, {"CREDENTIALS_DIRECTORY": str(given)}) == "the-other-one"
    # What systemd stands in for a file that is not there is empty.
    _put(given, "\n")
    assert _key(file, {"CREDENTIALS_DIRECTORY": str(given)}) == SECRET


def test_one_that_is_missing_is_said_with_every_place(file: Path, tmp_path: Path) -> None:
    given = _put(tmp_path / "given", "")
    with pytest.raises(ConfigError) as refused:
        load(file, environ={"CREDENTIALS_DIRECTORY": str(given)})
    assert str(refused.value) == (
        f"file {file}: server.api_key: the credential 'api-key': {given}/api-key is empty; "
        f"{file.parent}/credentials/api-key does not exist"
    )


@pytest.mark.parametrize("name", ["", "../passwd", "/etc/passwd", ".hidden", "a b"])
def test_a_name_leads_nowhere_else(file: Path, name: str) -> None:
    file.write_text(f'[server]\napi_key = "credential:{name}"\n')
    with pytest.raises(ConfigError, match="is not a valid credential name"):
        load(file, environ={})


def test_without_a_file_there_is_only_systemds(tmp_path: Path) -> None:
    environ = {"GATEWAYD_API_KEY": "credential:api-key"}
    with pytest.raises(ConfigError, match="there is no credentials folder"):
        load(environ=environ)
    given = _put(tmp_path / "given", SECRET)
    loaded = load(environ={**environ, "CREDENTIALS_DIRECTORY": str(given)})
    assert loaded.config.server.api_key is not None
    assert loaded.config.server.api_key.get_secret_value() == SECRET


def test_settings_of_strategies_may_be_credentials_and_are_not_shown(
    file: Path, tmp_path: Path
) -> None:
    file.write_text(
        '[logits_processor.watermark]\nsecret = "credential:mark"\n'
        '[model]\nserved_name = "credential:name"\n'
    )
    folder = file.parent / "credentials"
    _put(folder, SECRET, "mark")
    _put(folder, "hush", "name")
    loaded = load(file, environ={})
    assert loaded.config.logits_processor.settings("watermark") == {"secret": SECRET}
    assert loaded.config.model.served_name == "hush"
    shown = {setting.key: setting.value for setting in loaded.settings()}
    assert shown["model.served_name"] == shown["logits_processor.watermark.secret"] == "***"


def test_a_bad_one_is_named_without_its_value(file: Path) -> None:
    file.write_text('[log]\nlevel = "credential:level"\n')
    _put(file.parent / "credentials", SECRET, "level")
    with pytest.raises(ConfigError) as refused:
        load(file, environ={})
    assert "log.level" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_commands_that_need_no_secret_do_without(file: Path) -> None:
    loaded = load(file, environ={}, needs_secrets=False)
    assert {s.key: s.value for s in loaded.settings()}["server.api_key"] == "***"
