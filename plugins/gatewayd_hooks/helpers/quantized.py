"""What readers of quantized checkpoints share: fields of an announcement, and numbers that can be.

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
"""Characters of what a stranger wrote."""


class Fields:
    """Looks up the fields of an announcement.

    Args:
        announced: what a checkpoint says.
    """

    def __init__(self, announced: Announcement) -> None:
        self._values = announced.values
        self._where = announced.where

    def __contains__(self, name: object) -> bool:
        """Whether the field is there, be it null."""
        return name in self._values

    def refused(self, name: str, reason: str) -> ValueError:
        """What to raise for a field; ``reason`` goes on after its name."""
        return ValueError(f"{self._where}.{_cut(name)} {reason}")

    def one_of(self, name: str, known: Sequence[Any], *default: object) -> Any:  # noqa: ANN401
        """A field whose values are few; strings are told apart without regard to case.

        Args:
            name: of the field.
            known: its values.
            default: what a field that is not there stands for; without it, it has to be there.

        Raises:
            ValueError: it has another value.
        """
        told = f"this format knows {_listed(known)}"
        if name not in self._values and not default:
            raise self.refused(name, f"is missing; {told}")
        value = self._values.get(name, *default)
        value = value.lower() if isinstance(value, str) else value
        for each in known:
            if type(value) is type(each) and value == each:
                return value
        raise self.refused(name, f"is {_shown(value)}; {told}")

    def flag(self, name: str, *default: bool) -> bool:
        """A field that is true or false."""
        return bool(self.one_of(name, (True, False), *default))

    def names(self, name: str) -> tuple[str, ...]:
        """A list of names; none if the field is not there, or null.

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
        """Two sizes, of rows and of columns; None if the field is not there, or null.

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
        """An object inside; None if it is not there, or null.

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
        """A field as it stands; None if it is not there."""
        return self._values.get(name)

    def __iter__(self) -> Iterator[str]:
        """Names of its fields, in their order."""
        return iter(self._values)

    def refuse_set(self, *names: str) -> None:
        """Refuse fields that ask for what is not supported, unless they are empty.

        Raises:
            ValueError: one is not.
        """
        for name in names:
            if self._values.get(name):
                raise self.refused(name, f"is {_shown(self._values[name])}, which is not supported")

    def check_kv_scheme(self) -> None:
        """Look at ``kv_cache_scheme``: keys and values of 8-bit floats, one scale for each of both.

        The host reads these scales itself; whether they are used says its KV codec.

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
        """Log the fields that nobody has looked at: formats gather many that mean nothing here."""
        unknown = sorted(self._values.keys() - set(known))
        if unknown:
            named = ", ".join(_cut(name) for name in unknown[:_MOST_NAMED])
            rest = len(unknown) - _MOST_NAMED
            more = f" and {rest} more" if rest > 0 else ""
            _log.info("%s: unknown fields ignored: %s%s", self._where, named, more)


def finite(name: str, numbers: torch.Tensor) -> torch.Tensor:
    """Scales as float32.

    Args:
        name: of the tensor, for the sentence.
        numbers: floats of any shape.

    Raises:
        ValueError: one is not finite; the sentence says where.
    """
    is_finite = numbers.isfinite()
    if not is_finite.all():
        place = (~is_finite).nonzero()[0].tolist()
        raise ValueError(f"{name}{place} is {float(numbers[tuple(place)])}, which no scale can be")
    return numbers.float()


def divisible(name: str, size: int, by: int, what: str) -> int:
    """``size // by``.

    Args:
        name: of a matrix.
        size: of one of its sides.
        by: what it must be a multiple of.
        what: the side, for the sentence.

    Raises:
        ValueError: it is none.
    """
    if size % by:
        raise ValueError(f"{name} has {size} {what}, which is no multiple of {by}")
    return size // by


def _shown(value: object) -> str:
    """The beginning of a value."""
    return _cut(repr(value))


def _cut(text: str) -> str:
    cut = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return cut if cut.isprintable() else ascii(cut)


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0


def _listed(known: Sequence[object]) -> str:
    told = [each if isinstance(each, str) else json.dumps(each) for each in known]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"
