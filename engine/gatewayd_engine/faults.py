"""Faults of strategies: how the engine names them and finds out whose they are."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from gatewayd_hooks.strategy import Kind


class StrategyFault(Exception):
    """A strategy broke its contract; the step is redone with the default.

    Attributes:
        kind: which slot it fills.
    """

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


def culprit(error: BaseException, bound: Mapping[Kind, object]) -> Kind | None:
    """Find the strategy in whose method an exception arose.

    Looking at the traceback afterwards costs nothing while all goes well.
    """
    if isinstance(error, StrategyFault):
        return error.kind
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        for kind, strategy in bound.items():
            if owner is strategy:
                # The innermost: a scheduler asks what is cached, and the cache may fail it.
                found = kind
    return found
