"""Which matrices a list of targets means: by name, by pattern, or all that are linear."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gatewayd_hooks.helpers.quantized import Fields

_PATTERN = "re:"
_EVERY = "Linear"
_LONGEST = 200
_MOST_REPEATS = 6
"""A checkpoint is a stranger's: its patterns must not take hours."""
_IS_COSTLY = re.compile(r"\)[*+{]|\\[1-9]|\(\?P=")


@dataclass(frozen=True, slots=True)
class ModuleTargets:
    """Matrices of a model.

    Attributes:
        names: in full.
        patterns: that names begin with.
        has_all: those of every name.
    """

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    has_all: bool

    @classmethod
    def of(cls, fields: Fields, name: str) -> ModuleTargets:
        """Read a list.

        Raises:
            ValueError: a pattern is none, or can take too long.
        """
        listed = fields.names(name)
        patterns = [each for each in listed if each.startswith(_PATTERN)]
        names = frozenset(listed) - set(patterns)
        compiled = [_compiled(fields, name, each.removeprefix(_PATTERN)) for each in patterns]
        return cls(names, tuple(compiled), _EVERY in names)

    def rank(self, name: str) -> int:
        """How closely a name is meant: 0 not at all, 1 as one of all, 2 by pattern, 3 by name."""
        if name in self.names:
            return 3
        if any(pattern.match(name) for pattern in self.patterns):
            return 2
        return int(self.has_all)


def _compiled(fields: Fields, name: str, pattern: str) -> re.Pattern[str]:
    repeats = sum(pattern.count(sign) for sign in "*+{")
    if len(pattern) > _LONGEST or repeats > _MOST_REPEATS or _IS_COSTLY.search(pattern):
        raise fields.refused(
            name,
            f"has the pattern {pattern[:_LONGEST]!r}; patterns are of {_LONGEST} characters and"
            f" {_MOST_REPEATS} repeats at most, and repeat no group",
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise fields.refused(name, f"has the pattern {pattern!r}: {error}") from error
