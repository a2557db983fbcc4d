"""Loading of the configuration: flags override the environment, the file, and defaults.

The origin of each value is recorded for ``gatewayd config show`` and for error messages.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource

from gatewayd.config import credentials
from gatewayd.config.catalogue import (
    ModelConfigError,
    ModelNameTaken,
    check_names,
    model_configs,
)
from gatewayd.config.tables import ENV_DELIMITER, ENV_PREFIX, Config

DEFAULT = "default"
_HIDDEN = "***"
_SHORT_NAMES = {"GATEWAYD_API_KEY": "GATEWAYD_SERVER__API_KEY"}
CONFIG_VARIABLE = "GATEWAYD_CONFIG"

Path_ = tuple[str, ...]


class ConfigError(Exception):
    """The configuration is not valid; one sentence per problem, each with its origin."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """A value of the configuration and its origin.

    Attributes:
        key: dotted key, such as ``server.port``.
        value: printable value; secrets are hidden.
        origin: a flag, an environment variable, a file, or ``default``.
    """

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and the origins of its values.

    Attributes:
        config: the configuration.
        origins: origins of values that are not defaults, by dotted key.
        secrets: keys whose values are credentials.
    """

    config: Config
    origins: Mapping[str, str]
    secrets: frozenset[str] = frozenset()

    def settings(self) -> list[SettingOrigin]:
        """All values in the order of the tables, including settings of chosen strategies."""
        # Imported late: the daemon loads its configuration without any plugin.
        from gatewayd.config.chosen_strategies import effective_settings, hidden_settings

        dumped = self.config.model_dump(mode="python")
        for (kind, name), settings in effective_settings(self.config).items():
            dumped[kind][name] = settings
        hidden = hidden_settings(self.config) | self.secrets
        return [
            SettingOrigin(
                key,
                _HIDDEN if _is_under(key, hidden) else _printable(value),
                self.origins.get(key, DEFAULT),
            )
            for key, value in _leaves(dumped)
        ]


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    needs_secrets: bool = True,
    options: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Read, merge and validate the configuration.

    Args:
        file: a TOML file; None for the one in ``GATEWAYD_CONFIG``, or no file.
        flags: values set on the command line, by dotted key.
        environ: the environment; None for the process's own.
        needs_secrets: whether a missing credential is an error; otherwise its name stays.
        options: options that set the flags, by key, where their names are not those of the keys.

    Raises:
        ConfigError: a file that cannot be read, an unknown key, a value out of bounds.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    # From the weakest source to the strongest: file, environment, flags.
    if file is not None:
        _merge(merged, _read_file(file), origins, lambda key: f"file {file}")
    _merge(merged, _read_environment(environ), origins, _variable)
    for key, value in (flags or {}).items():
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        flag = (options or {}).get(key) or "--" + key.rpartition(".")[2].replace("_", "-")
        _merge(merged, nested, origins, lambda _, flag=flag: f"flag {flag}")
    # Before the names are replaced: afterwards secrets look like any other text.
    secrets = credentials.named(merged)
    missing = credentials.fill(merged, credentials.Credentials(environ, file))
    if missing and needs_secrets:
        raise ConfigError([f"{origins[key]}: {key}: {why}" for key, why in missing.items()])
    try:
        config = Config(**merged)
        check_names(model_configs(config), config)
    # ``from None``: pydantic's own errors quote the values, secrets included.
    except ValidationError as error:
        raise ConfigError([_explain(e, origins, secrets) for e in error.errors()]) from None
    except ModelConfigError as wrong:
        below = ("models", wrong.name)
        problems = [_explain(e, origins, secrets, below) for e in wrong.error.errors()]
        raise ConfigError(problems) from None
    except ModelNameTaken as taken:
        raise ConfigError([f"{_origin(taken.key, origins)}: {taken}"]) from None
    return LoadedConfig(config, origins, frozenset(secrets))


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"cannot read {file}: {error}"]) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{file} is not TOML: {error}"]) from error


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Parse variables: ``GATEWAYD_SERVER__PORT=80`` is ``{"server": {"port": "80"}}``."""
    ours: dict[str, str] = {}
    # Long names first: if both are set, the short one is ignored.
    for name, value in sorted(environ.items(), key=lambda item: item[0] in _SHORT_NAMES):
        name = _SHORT_NAMES.get(name, name)
        table, delimiter, _ = name.removeprefix(ENV_PREFIX).partition(ENV_DELIMITER)
        if not name.startswith(ENV_PREFIX) or not delimiter:
            continue  # GATEWAYD_CONFIG, and variables of other programs of the project
        if table.lower() not in Config.model_fields:
            near = _nearest(table.lower(), Config.model_fields)
            raise ConfigError([f"environment {name}: there is no table [{table.lower()}]{near}"])
        ours.setdefault(name, value)
    source = EnvSettingsSource(Config)
    # In lower case, as the source itself reads the environment.
    source.env_vars = {name.lower(): value for name, value in ours.items()}
    try:
        return source()
    except ValueError as error:
        raise ConfigError([f'environment: {error}; a list is written as ["a", "b"]']) from error


def _variable(key: str) -> str:
    return "environment " + ENV_PREFIX + key.upper().replace(".", ENV_DELIMITER)


def _merge(
    into: dict[str, Any],
    new: Mapping[str, Any],
    origins: dict[str, str],
    origin: Any,  # noqa: ANN401
    path: Path_ = (),
) -> None:
    for name, value in new.items():
        here = (*path, name)
        if isinstance(value, Mapping) and isinstance(into.setdefault(name, {}), dict):
            _merge(into[name], value, origins, origin, here)
        else:
            into[name] = value
            key = ".".join(here)
            origins[key] = origin(key)


def _leaves(tree: Mapping[str, Any], path: Path_ = ()) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


def _printable(value: Any) -> Any:  # noqa: ANN401
    return _HIDDEN if isinstance(value, SecretStr) else value


def _is_under(key: str, prefixes: Collection[str]) -> bool:
    return any(key == prefix or key.startswith(prefix + ".") for prefix in prefixes)


def _explain(
    error: Any,  # noqa: ANN401
    origins: Mapping[str, str],
    secrets: Collection[str],
    below: Path_ = (),
) -> str:
    """Describe a validation error: its key, origin and reason, and the nearest valid key."""
    own = tuple(str(part) for part in error["loc"])
    path = (*below, *own)
    key = ".".join(path)
    origin = _origin(key, origins)
    if error["type"] == "extra_forbidden":
        siblings = _fields(own[:-1])
        return f"{origin}: unknown key {key}{_nearest(path[-1], siblings, path[:-1])}"
    value = error["input"]
    is_secret = path[-1:] == ("api_key",) or key in secrets
    shown = "" if isinstance(value, dict) or is_secret else f" = {value!r}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{origin}: {key}{shown}: {message[0].lower()}{message[1:]}"


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """The origin of a value; of a whole table that of any of its keys, else of the one above it."""
    found = (o for k, o in origins.items() if k == key or k.startswith(key + "."))
    return next(found, None) or origins.get(key.rpartition(".")[0], "configuration")


def _fields(path: Path_) -> list[str]:
    """Keys of a table, or all tables for the empty path."""
    table: Any = Config
    for part in path:
        if typing.get_origin(table) is dict:  # of tables by name
            table = typing.get_args(table)[1]
            continue
        field = table.model_fields.get(part)
        table = None if field is None else field.annotation
        if typing.get_origin(table) is dict:
            continue
        if not (isinstance(table, type) and issubclass(table, BaseModel)):
            return []
    return list(table.model_fields)


def _nearest(name: str, known: Any, path: Path_ = ()) -> str:  # noqa: ANN401
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if matches:
        return f"; did you mean {'.'.join((*path, matches[0]))}?"
    return f"; there is {', '.join(known)}" if known else ""
