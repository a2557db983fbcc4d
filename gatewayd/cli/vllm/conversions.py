"""Conversions of the values of vLLM's options to settings by dotted key."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Given = str | bool | tuple[str, ...]
"""Value on the command line: text; for a flag whether it is on; texts if several are allowed."""

Settings = Mapping[str, Any]

_POWERS = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class UnsupportedValue(ValueError):
    """A value without an equivalent; the message says what is accepted, or nothing."""


class Conversion(Protocol):
    """Conversion of one option."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Dotted keys that it may set."""

    def __call__(self, given: Given) -> Settings:
        """Convert a value.

        Raises:
            UnsupportedValue: it has no equivalent.
        """


@dataclass(frozen=True, slots=True)
class Nothing:
    """Refuse all values; of a flag, its negation holds anyway."""

    keys: tuple[str, ...] = ()

    def __call__(self, given: Given) -> Settings:
        """Accept ``--no-...`` only."""
        if given is False:
            return {}
        raise UnsupportedValue


@dataclass(frozen=True, slots=True)
class Anything:
    """Accept all values without effect; a flag cannot be negated."""

    keys: tuple[str, ...] = ()

    def __call__(self, given: Given) -> Settings:
        """Accept everything but ``--no-...``."""
        if given is False:
            raise UnsupportedValue("it cannot be disabled")
        return {}


@dataclass(frozen=True, slots=True)
class Only:
    """Accept values that hold anyway."""

    values: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def __call__(self, given: Given) -> Settings:
        """Compare with the accepted values."""
        if given not in self.values:
            raise UnsupportedValue(f"it must be {' or '.join(self.values)}")
        return {}


@dataclass(frozen=True, slots=True)
class To:
    """Set one key to the value, which the configuration then validates."""

    key: str
    parse: Callable[[str], object] = str

    @property
    def keys(self) -> tuple[str, ...]:
        """The key."""
        return (self.key,)

    def __call__(self, given: Given) -> Settings:
        """Parse the value; of several, exactly one is accepted."""
        text = given[0] if isinstance(given, tuple) and len(given) == 1 else given
        if not isinstance(text, str):
            raise UnsupportedValue("it takes exactly one value")
        try:
            return {self.key: self.parse(text)}
        except ValueError as error:
            raise UnsupportedValue(f"{text!r} is not valid: {error}") from error


@dataclass(frozen=True, slots=True)
class Switch:
    """Set keys by a flag.

    Attributes:
        on: settings of the flag.
        off: settings of its negation.
    """

    on: Settings
    off: Settings

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of both."""
        return tuple(dict.fromkeys([*self.on, *self.off]))

    def __call__(self, given: Given) -> Settings:
        """Choose by the flag."""
        return self.on if given is True else self.off


@dataclass(frozen=True, slots=True)
class NameChoice:
    """Set keys by the name of a choice.

    Attributes:
        settings: by vLLM's name.
        other: key that gets names that are not in ``settings``, for plugins; None refuses them.
        without: names that are refused with a reason.
    """

    settings: Mapping[str, Settings]
    other: str | None = None
    without: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all choices."""
        keys = [key for each in self.settings.values() for key in each]
        return tuple(dict.fromkeys(keys + ([self.other] if self.other else [])))

    def __call__(self, given: Given) -> Settings:
        """Look the name up."""
        name = str(given)
        if name in self.settings:
            return self.settings[name]
        if name in self.without:
            raise UnsupportedValue(f"{name!r} is not available: {self.without[name]}")
        if self.other is None:
            raise UnsupportedValue(f"it must be one of {', '.join(self.settings)}")
        return {self.other: name.replace("-", "_")}


def names(key: str, values: Mapping[str, str]) -> dict[str, Settings]:
    """Settings of one key by vLLM's names."""
    return {theirs: {key: ours} for theirs, ours in values.items()}


def tokens(text: str) -> int:
    """Parse a number as vLLM does: ``1k`` is 1,000, ``1K`` 1,024, ``25.6k`` 25,600.

    Raises:
        ValueError: it is none.
    """
    factor = _POWERS.get(text[-1:])
    number = float(text[:-1]) * factor if factor else int(text)
    if not _is_finite(number) or number != int(number):
        raise ValueError("it is not a whole number")
    return int(number)


def gibibytes(text: str) -> int:
    """Parse a number of GiB to bytes.

    Raises:
        ValueError: it is none, or negative.
    """
    size = float(text) * (1 << 30)
    if not _is_finite(size) or size < 0:
        raise ValueError("write a number of GiB from 0, such as 4 or 0.5")
    return round(size)


def _is_finite(number: float) -> bool:
    # Exact for whole numbers, which `math.isfinite` would convert to floats that may overflow.
    return isinstance(number, int) or math.isfinite(number)


def json_list(text: str) -> list[Any]:
    """Parse a list in JSON.

    Raises:
        ValueError: it is none.
    """
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError('write a list such as ["a", "b"]')
    return found


def swap_space(given: Given) -> Settings:
    """Convert GiB of host memory for preempted sequences; 0 recomputes them."""
    memory = To("memory", gibibytes)(given)["memory"]
    if not memory:
        return {"preemption.strategy": "recompute"}
    return {"preemption.strategy": "swap", "preemption.swap.memory": memory}


def served_names(given: Given) -> Settings:
    """Convert the names of the model; the first is the one in answers and metrics."""
    first, *more = dict.fromkeys(given if isinstance(given, tuple) else (str(given),))
    # All are set: the option replaces the names of a configuration file.
    return {"model.served_name": first, "model.served_names": more}


@dataclass(frozen=True, slots=True)
class By:
    """Convert by a function, which may set several keys."""

    function: Callable[[Given], Settings]
    keys: tuple[str, ...]

    def __call__(self, given: Given) -> Settings:
        """Call the function."""
        return self.function(given)
