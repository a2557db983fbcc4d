"""Selects matrices by a list of targets: by name, by pattern, or all linear ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gatewayd_hooks.helpers.quantized import Fields

_PATTERN = "re:"
_EVERY = "Linear"
_LONGEST = 200
_MOST_REPEATS = 6
"""Checkpoints are untrusted: their patterns must not take hours to match."""
# A repetition of a group, or a reference to one, may backtrack exponentially.
_IS_COSTLY = re.compile(r"\)[*+{]|\\[1-9]|\(\?P=")


@dataclass(frozen=True, slots=True)
class ModuleTargets:
    """Selection of a model's matrices.

    Attributes:
        names: full names.
        patterns: matched at the beginning of names.
        has_all: whether every matrix is selected.
    """

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    has_all: bool

    @classmethod
    def of(cls, fields: Fields, name: str) -> ModuleTargets:
        """Parse a list.

        Raises:
            ValueError: a pattern is invalid, or could be slow.
        """
        listed = fields.names(name)
        patterns = [each for each in listed if each.startswith(_PATTERN)]
        names = frozenset(listed) - set(patterns)
        compiled = [_compiled(fields, name, each.removeprefix(_PATTERN)) for each in patterns]
        return cls(names, tuple(compiled), _EVERY in names)

    def rank(self, name: str) -> int:
        """Return how specifically a name matches.

        0 is not at all, 1 as one of all, 2 by pattern, 3 by name.
        """
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
