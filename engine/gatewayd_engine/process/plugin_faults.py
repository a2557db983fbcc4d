"""Faults of strategies: how the engine names them and finds out whose they are."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Mapping
from types import TracebackType

from gatewayd_hooks.host.errors import told
from gatewayd_hooks.host.fence import StrategyFault, StrategyHang
from gatewayd_hooks.host.ledger import Account
from gatewayd_hooks.strategy import Kind

__all__ = [
    "STRATEGY_ERROR",
    "Fault",
    "OutOfService",
    "RequestFault",
    "RequestRejected",
    "StrategyFault",
    "StrategyHang",
    "blame",
    "culprit",
    "deed",
    "failure",
    "tell_fault",
]

_log = logging.getLogger(__name__)


Fault = tuple[str, str]
"""Code and sentence of a request that fails, for its client."""
STRATEGY_ERROR = "strategy_error"
"""Code of a request that fails by a plugin."""


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


class RequestRejected(Exception):
    """A submission that this engine cannot serve; the sentence says why, a code what kind."""

    def __init__(self, sentence: str, code: str = "invalid_request") -> None:
        super().__init__(sentence)
        self.code = code


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


def tell_fault(who: str, error: BaseException, strategy: object, count: int, limit: int) -> None:
    """Write a fault to the log, in one line.

    Args:
        who: the strategy, and the distribution that it came in.
        error: what came of it.
        strategy: itself, as far as known.
        count: its faults so far.
        limit: the fault at which it is quarantined.
    """
    is_last = count == limit
    _log.log(
        logging.ERROR if is_last else logging.WARNING,
        "%s %s (fault %d of %d)%s",
        who,
        deed(error, strategy),
        count,
        limit,
        "; quarantined until `gatewayd swap` selects it again" if is_last else "",
    )


def deed(error: BaseException, strategy: object = None) -> str:
    """What a strategy did, and where, in one line for the log.

    Args:
        error: what came of it.
        strategy: named as the place when it did not raise.
    """
    is_named = isinstance(error, StrategyFault)
    cause = (error.__cause__ if is_named else None) or error
    if place := _place_of_raise(cause):
        return f"raised {told(cause)} at {place}"
    what = f"gave what cannot be used, {told(cause)}"
    if isinstance(cause, StrategyFault):
        what = " ".join(cause.reason.split())
    if isinstance(cause, StrategyHang) or strategy is None:
        return what
    return f"{what}; it is {_place_of_class(type(strategy))}"


def _place_of_raise(error: BaseException) -> str:
    """Where in a plugin's own code something was raised; empty if it was elsewhere."""
    package, place, is_next = None, "", False
    for frame, line in traceback.walk_tb(error.__traceback__):
        if isinstance(frame.f_locals.get("account"), Account):
            package, place, is_next = None, "", True
            continue
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        if is_next:
            package, is_next = name, False
        if package is not None and name == package:
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def _place_of_class(of: type) -> str:
    try:
        return f"{of.__name__} at {inspect.getsourcefile(of)}:{inspect.getsourcelines(of)[1]}"
    except (OSError, TypeError):
        return of.__name__


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
