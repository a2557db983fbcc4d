"""Reading of vLLM's options on the command line of ``gatewayd serve``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gatewayd.cli.vllm.conversions import Given, UnsupportedValue
from gatewayd.cli.vllm.option import Takes, Treatment, VllmOption
from gatewayd.cli.vllm.table import OPTIONS, REVISION

_SPECULATIVE = "--speculative-config"


class UsageProblem(ValueError):
    """The command line is wrong; the message names the option and what to do."""


class _Spelling(NamedTuple):
    option: VllmOption
    takes: Takes


_BY_NAME = {name: _Spelling(row, takes) for row in OPTIONS for name, takes in row.names().items()}
_SPECULATIVE_OPTION = _BY_NAME[_SPECULATIVE].option


@dataclass(slots=True)
class GivenSettings:
    """Settings, and the option that set each.

    Attributes:
        values: by key.
        names: option by key.
    """

    values: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, settings: Mapping[str, Any]) -> None:
        """Add the settings of an option; if it is repeated, the last one applies.

        Raises:
            UsageProblem: another option has set one of them to another value.
        """
        for key, value in settings.items():
            other = self.names.get(key, name)
            if other != name and self.values[key] != value:
                raise UsageProblem(f"{other} and {name} both set {key}: leave one of them out")
            self.values[key] = value
            self.names[key] = name


@dataclass(slots=True)
class ServeArguments:
    """Command line of ``serve``, taken apart.

    Attributes:
        settings: what vLLM's options set, by dotted key of the configuration.
        revision: of the model; None for the default.
        rest: arguments that are not vLLM's.
    """

    settings: GivenSettings = field(default_factory=GivenSettings)
    revision: str | None = None
    rest: list[str] = field(default_factory=list)


def read(arguments: Sequence[str], own: Mapping[str, bool]) -> ServeArguments:
    """Take vLLM's options out of a command line.

    Args:
        arguments: those of ``serve``.
        own: names of its own options, and whether a value follows each.

    Raises:
        UsageProblem: an option of vLLM is refused, lacks its value, or contradicts another one;
            an unknown option is similar to one of vLLM's.
    """
    found = ServeArguments()
    speculative = GivenSettings()
    left = list(arguments)
    while left:
        token = left.pop(0)
        if token == "--":
            found.rest += [token, *left]
            break
        written, equals, value = token.partition("=")
        base, dot, path = written.partition(".")
        name = base.replace("_", "-")
        if token.startswith("-O") and token[2:].isdigit():
            name, equals, value = "-O", "=", token[2:]
        spelling = _spelling(name)
        if not token.startswith("-") or (spelling is None and name not in own):
            _refuse_similar(name, own)
            found.rest.append(token)
        elif spelling is None or spelling.option.is_own:
            found.rest.append(f"{name}{dot}{path}{equals}{value}")
            if own.get(name) and not equals and left:
                found.rest.append(left.pop(0))
        else:
            given = _given(name, spelling, [value] if equals else None, left)
            option, name = spelling.option, f"{name}{dot}{path}"
            if option.part or option is _SPECULATIVE_OPTION:
                speculative.add(name, _parts(name, option, given, path))
            elif path and option.treatment is not Treatment.REFUSED:
                raise UsageProblem(f"{name} is not supported: it has no parts. {option.meaning}")
            else:
                found.settings.add(name, _convert(name, option, given))
    if speculative.values:
        name = ", ".join(dict.fromkeys(speculative.names.values()))
        text = json.dumps(speculative.values)
        found.settings.add(name, _convert(name, _SPECULATIVE_OPTION, text))
    found.revision = found.settings.values.pop(REVISION, None)
    return found


def _spelling(name: str) -> _Spelling | None:
    """Look up an option, or the flag that it negates."""
    found = _BY_NAME.get(name)
    if found is None and name.startswith("--no-"):
        negated = _BY_NAME.get("--" + name.removeprefix("--no-"))
        found = negated if negated is not None and negated.takes is Takes.NONE else None
    return found


def _given(name: str, spelling: _Spelling, first: list[str] | None, left: list[str]) -> Given:
    """Return an option's value; it may be the next arguments, which are removed."""
    if spelling.takes is Takes.NONE:
        if first:
            raise UsageProblem(f"{name} takes no value: remove ={first[0]}")
        return name in _BY_NAME
    if first is None and not left:
        raise UsageProblem(f"{name} requires a value")
    values = first or [left.pop(0)]
    if spelling.takes is Takes.ONE:
        return values[0]
    while first is None and left and not left[0].startswith("-"):
        values.append(left.pop(0))
    return tuple(values)


def _convert(name: str, option: VllmOption, given: Given) -> Mapping[str, Any]:
    try:
        return option.convert(given)
    except UnsupportedValue as error:
        if option.treatment is Treatment.REFUSED:
            raise UsageProblem(f"{name} of vLLM is not supported. {option.meaning}") from error
        shown = "" if isinstance(given, bool) else f" {_shown(given)}"
        raise UsageProblem(f"{name}{shown} is not supported: {error}. {option.meaning}") from error


def _shown(given: Given) -> str:
    text = " ".join(given) if isinstance(given, tuple) else str(given)
    return text if len(text) <= 80 else text[:80] + "..."


def _parts(name: str, option: VllmOption, given: Given, path: str) -> Mapping[str, Any]:
    """Return the keys of ``--speculative-config`` that an option sets."""
    if option.part:
        return _convert(name, option, given)
    try:
        found = json.loads(str(given))
    except ValueError as error:
        if not path:
            raise UsageProblem(f"{name} {_shown(given)} is not JSON: {error}") from error
        found = given
    if path:
        return {path: found}
    if not isinstance(found, dict):
        raise UsageProblem(f"{name} {_shown(given)} must be a JSON object")
    return found


def _refuse_similar(name: str, own: Mapping[str, bool]) -> None:
    """Name the nearest option of vLLM; options near to one of ``serve`` are left to it."""
    if not name.startswith("--"):
        return
    near = difflib.get_close_matches(name, [*own, *_BY_NAME], n=1)
    if near and near[0] not in own:
        raise UsageProblem(f"No such option: {name} Did you mean {near[0]}?")
