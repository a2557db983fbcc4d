"""Row of the table of vLLM's options: spellings, treatment, reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gatewayd.cli.vllm.conversions import Anything, Conversion, Nothing


class Treatment(StrEnum):
    """What becomes of an option."""

    MAPPED = "mapped"
    IMPLIED = "implied"
    REFUSED = "refused"


class Takes(StrEnum):
    """Number of values of an option."""

    NONE = "none"
    ONE = "one"
    SEVERAL = "several"


@dataclass(frozen=True, slots=True)
class VllmOption:
    """One or more options of vLLM with the same treatment.

    Attributes:
        spellings: as on the command line: ``--seed N``, ``--enable-lora`` for a flag,
            ``--lora-modules NAME=PATH...`` for several values.
        convert: converts a value to settings, or raises ``UnsupportedValue``.
        meaning: one sentence: what it does here, or why it is refused and what to do instead.
        is_own: whether ``serve`` has the same option, with the same meaning.
        part: key of ``--speculative-config`` that it sets; empty for others.
    """

    spellings: tuple[str, ...]
    convert: Conversion
    meaning: str
    is_own: bool = False
    part: str = ""

    @property
    def treatment(self) -> Treatment:
        """Mapped if it sets a key, refused if it takes no value at all."""
        if self.is_own or self.part or self.convert.keys:
            return Treatment.MAPPED
        return Treatment.REFUSED if self.convert == Nothing() else Treatment.IMPLIED

    def names(self) -> dict[str, Takes]:
        """Its names with dashes, and how many values follow each."""
        return dict(_name(spelling) for spelling in self.spellings)


def mapped(spellings: str, convert: Conversion, meaning: str, *, part: str = "") -> VllmOption:
    """Make the row of an option that sets keys."""
    return VllmOption(_split(spellings), convert, meaning, part=part)


def own(spelling: str, convert: Conversion, meaning: str) -> VllmOption:
    """Make the row of an option that ``serve`` itself has."""
    return VllmOption(_split(spelling), convert, meaning, is_own=True)


def implied(spellings: str, meaning: str, convert: Conversion | None = None) -> VllmOption:
    """Make the row of options without effect; some accept only what holds anyway."""
    return VllmOption(_split(spellings), convert or Anything(), meaning)


def refused(spellings: str, meaning: str) -> VllmOption:
    """Make the row of options that are errors."""
    return VllmOption(_split(spellings), Nothing(), meaning)


def _split(spellings: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in spellings.split(","))


def _name(spelling: str) -> tuple[str, Takes]:
    name, _, placeholder = spelling.partition(" ")
    if not placeholder:
        return name, Takes.NONE
    return name, Takes.SEVERAL if placeholder.endswith("...") else Takes.ONE
