"""Faults of strategies: how the engine names them and finds out whose they are."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import TracebackType

from gatewayd_hooks.fence import StrategyFault, StrategyHang
from gatewayd_hooks.ledger import Account
from gatewayd_hooks.strategy import Kind

__all__ = [
    "OutOfService",
    "RequestFault",
    "StrategyFault",
    "StrategyHang",
    "blame",
    "culprit",
    "failure",
    "told",
]


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


class OutOfService(Exception):
    """A request asks for a processor that cannot serve it; the sentence is for its client."""


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
        if error is not None and not isinstance(error, StrategyFault | RequestFault):
            raise StrategyFault(self._kind, repr(error)) from error


def failure(name: str) -> str:
    """What a client is told of a logits processor; what it said itself is for the log."""
    return f"the logits processor {name} failed; try again, or send the request without it"


def told(error: BaseException) -> str:
    """An exception in one line: its type and what it says."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def culprit(error: BaseException, bound: Mapping[Kind, object]) -> Kind | None:
    """Find the strategy, of those that fill a slot, in whose call an exception arose.

    Looking at the traceback afterwards costs nothing while all goes well.
    """
    if isinstance(error, StrategyFault):
        return error.kind
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        account = frame.f_locals.get("account")
        if isinstance(account, Account) and account.kind in bound:
            # The innermost: a scheduler asks what is cached, and the cache may fail it.
            found = account.kind
    return found
