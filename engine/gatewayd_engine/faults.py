"""Faults of strategies: how the engine names them and finds out whose they are."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import TracebackType

from gatewayd_hooks.strategy import Kind


class StrategyFault(Exception):
    """A strategy broke its contract; the step is redone with the default.

    Attributes:
        kind: which slot it fills.
    """

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


class RequestFault(Exception):
    """A request cannot be served, by no fault of the engine; it ends with an error.

    Attributes:
        slot: whose it is.
        code, sentence: what its client is told.
    """

    def __init__(self, slot: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.slot = slot
        self.code = code
        self.sentence = sentence


class blame:
    """Whatever is raised while a strategy is asked, and its answer looked at, is its fault."""

    __slots__ = ("_kind",)

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Name the strategy.

        Raises:
            StrategyFault: instead of what was raised.
        """
        if isinstance(error, Exception) and not isinstance(error, StrategyFault | RequestFault):
            raise StrategyFault(self._kind, repr(error)) from error


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
