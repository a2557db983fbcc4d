"""Random damages of a config.json: types, sizes, missing and nested values, and cut files."""

from __future__ import annotations

import copy
import json
import random
import string
from collections.abc import Callable, Sequence
from typing import Any

_HUGE = (2**31 - 1, 2**31, 2**40, 2**63, 10**30, 10**400, 1e308, 1e30)
_SMALL = (0, -1, 1, 2, 3, 7, -(2**31), 0.5, -0.0, 1e-320)
_NO_NUMBER = (float("nan"), float("inf"), float("-inf"))
_TYPES: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "1",
    "full",
    [],
    {},
    [[]],
    {"a": {}},
    [1, "2", None],
    "\u0000",
)
_TEXTS = ("gpt2", "gemma3", "llama4", "T5ForConditionalGeneration", "../..", "yarn", "longrope")
_DEPTHS = (3, 50, 400)
_DEEPEST = 4


def damaged(config: dict[str, Any], draw: random.Random) -> bytes:
    """A damaged config.json; most have one damage, some several."""
    made: Any = copy.deepcopy(config)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        _damage(made, draw)
    data = json.dumps(made).encode()
    if draw.random() < 0.04:
        at = draw.randrange(len(data))
        data = draw.choice((data[:at], data[:at] + b"\xff" + data[at:], data[:at] + data[at + 1 :]))
    return data


def _damage(config: Any, draw: random.Random) -> None:
    holder, key = draw.choice(_places(config))
    value = holder[key]
    action = draw.choice(_ACTIONS)
    if action is None:
        del holder[key]
    else:
        holder[key] = action(value, draw)


def _places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """All values, with what holds them."""
    keys: Sequence[Any] = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    found = [(value, key) for key in keys]
    if depth < _DEEPEST:
        for key in keys:
            found += _places(value[key], depth + 1)
    return found


def _nested(value: Any, draw: random.Random) -> Any:
    for _ in range(draw.choice(_DEPTHS)):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def _scaled(value: Any, draw: random.Random) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [value] * draw.choice((2, 1000))
    return type(value)(value * draw.choice((-1, 0, 2, 3, 0.5, 1000, 10**6)))


def _random_text(_: Any, draw: random.Random) -> str:
    return "".join(draw.choices(string.printable + "\u2028\u00e9", k=draw.choice((1, 30, 3000))))


_ACTIONS: list[Callable[[Any, random.Random], Any] | None] = [
    None,
    lambda _, draw: draw.choice(_HUGE),
    lambda _, draw: draw.choice(_HUGE),
    lambda _, draw: draw.choice(_SMALL),
    lambda _, draw: draw.choice(_SMALL),
    lambda _, draw: draw.choice(_NO_NUMBER),
    lambda _, draw: copy.deepcopy(draw.choice(_TYPES)),
    lambda _, draw: draw.choice(_TEXTS),
    _nested,
    _scaled,
    _scaled,
    _random_text,
]
