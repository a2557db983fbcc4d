"""Field lookup and numeric checks for readers of quantized checkpoints.

Each refusal is a sentence that names the field. Imports no torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gatewayd_hooks.quantization import Announcement

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

_MOST_NAMED = 20
_MOST_SHOWN = 100
"""Limit on characters of untrusted text in messages."""


def weighs_experts(name: str) -> bool:
    """Whether a matrix weighs experts: a router, or the gate of a shared expert.

    Such matrices are small and sensitive, and stored as floats whatever the format of the others.

    Args:
        name: of the matrix, without ``.weight``.
    """
    return name.rpartition(".")[2] in ("gate", "router", "shared_expert_gate")


class Fields:
    """Looks up the fields of an announcement.

    Args:
        announced: quantization configuration of a checkpoint.
    """

    def __init__(self, announced: Announcement) -> None:
        self._values = announced.values
        self._where = announced.where

    def __contains__(self, name: object) -> bool:
        """Whether the field exists, even if null."""
        return name in self._values

    def refused(self, name: str, reason: str) -> ValueError:
        """Return the exception for a field; ``reason`` continues the sentence after its name."""
        return ValueError(f"{self._where}.{_cut(name)} {reason}")

    def one_of(self, name: str, known: Sequence[Any], *default: object) -> Any:  # noqa: ANN401
        """Return a field with few allowed values; strings are compared without regard to case.

        Args:
            name: of the field.
            known: allowed values.
            default: value if the field is missing; without it, the field is required.

        Raises:
            ValueError: it has another value.
        """
        expected = f"this format knows {_listed(known)}"
        if name not in self._values and not default:
            raise self.refused(name, f"is missing; {expected}")
        value = self._values.get(name, *default)
        value = value.lower() if isinstance(value, str) else value
        for each in known:
            # In Python True equals 1, but in a configuration they mean different things.
            if type(value) is type(each) and value == each:
                return value
        raise self.refused(name, f"is {_shown(value)}; {expected}")

    def flag(self, name: str, *default: bool) -> bool:
        """Return a boolean field."""
        return bool(self.one_of(name, (True, False), *default))

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of names; empty if the field is missing or null.

        Raises:
            ValueError: it is anything else.
        """
        value = self._values.get(name)
        if value is None:
            return ()
        if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise self.refused(name, f"is {_shown(value)}, not a list of names")
        return tuple(value)

    def sizes(self, name: str) -> tuple[int, int] | None:
        """Return two sizes, of rows and of columns; None if the field is missing or null.

        Raises:
            ValueError: it is anything else.
        """
        value = self._values.get(name)
        if value is None:
            return None
        if not (
            isinstance(value, list) and len(value) == 2 and all(_is_size(each) for each in value)
        ):
            raise self.refused(name, f"is {_shown(value)}, not two sizes, of rows and of columns")
        return value[0], value[1]

    def part(self, name: str) -> Fields | None:
        """Return a nested object; None if it is missing or null.

        Raises:
            ValueError: it is anything else.
        """
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refused(name, f"is {_shown(value)}, not an object")
        return Fields(Announcement(value, f"{self._where}.{_cut(name)}"))

    def value(self, name: str) -> Any:  # noqa: ANN401
        """Return a field unchecked; None if it is missing."""
        return self._values.get(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the field names, in order."""
        return iter(self._values)

    def refuse_set(self, *names: str) -> None:
        """Refuse fields that request unsupported features, unless they are empty.

        Raises:
            ValueError: one is not.
        """
        for name in names:
            if self._values.get(name):
                raise self.refused(name, f"is {_shown(self._values[name])}, which is not supported")

    def check_kv_scheme(self) -> None:
        """Check ``kv_cache_scheme``: keys and values as 8-bit floats, with one scale for each.

        The host reads these scales itself; the KV codec decides whether they are used.

        Raises:
            ValueError: it asks for something else.
        """
        name = "kv_cache_scheme"
        if not self._values.get(name) or self._values[name] == "static":
            return
        scheme = self.part(name)
        if scheme is not None:
            scheme.one_of("num_bits", (8,))
            scheme.one_of("type", ("float",))
            scheme.one_of("strategy", ("tensor",), "tensor")
            scheme.one_of("symmetric", (True,), True)

    def tell_unknown(self, known: Collection[str]) -> None:
        """Log fields that were not read: formats accumulate many without a meaning here."""
        unknown = sorted(self._values.keys() - set(known))
        if unknown:
            named = ", ".join(_cut(name) for name in unknown[:_MOST_NAMED])
            rest = len(unknown) - _MOST_NAMED
            more = f" and {rest} more" if rest > 0 else ""
            _log.info("%s: unknown fields ignored: %s%s", self._where, named, more)


def finite(name: str, numbers: torch.Tensor) -> torch.Tensor:
    """Return scales as float32.

    Args:
        name: of the tensor, for the message.
        numbers: floats of any shape.

    Raises:
        ValueError: one is not finite; the message gives its index.
    """
    is_finite = numbers.isfinite()
    if not is_finite.all():
        place = (~is_finite).nonzero()[0].tolist()
        raise ValueError(f"{name}{place} is {float(numbers[tuple(place)])}, which no scale can be")
    return numbers.float()


def divisible(name: str, size: int, by: int, what: str) -> int:
    """Return ``size // by``.

    Args:
        name: of a matrix.
        size: one of its dimensions.
        by: divisor.
        what: name of the dimension, for the message.

    Raises:
        ValueError: it is not a multiple.
    """
    if size % by:
        raise ValueError(f"{name} has {size} {what}, which is no multiple of {by}")
    return size // by


def _shown(value: object) -> str:
    """Return the beginning of a value's representation."""
    return _cut(repr(value))


def _cut(text: str) -> str:
    cut = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    # Control characters of a checkpoint must not reach an operator's terminal.
    return cut if cut.isprintable() else ascii(cut)


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0


def _listed(known: Sequence[object]) -> str:
    names = [each if isinstance(each, str) else json.dumps(each) for each in known]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
