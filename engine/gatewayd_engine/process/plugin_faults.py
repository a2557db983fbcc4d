"""Faults of strategies: exceptions, attribution to the responsible strategy, and log lines."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Mapping
from types import TracebackType

from gatewayd_hooks.host.errors import describe_error
from gatewayd_hooks.host.fence import StrategyFault, StrategyHang
from gatewayd_hooks.host.plugin_times import Account
from gatewayd_hooks.strategy import Kind

__all__ = [
    "STRATEGY_ERROR",
    "Fault",
    "ProcessorUnavailable",
    "RequestFault",
    "RequestRejected",
    "StrategyFault",
    "StrategyHang",
    "attribute_faults",
    "describe_fault",
    "failure",
    "faulty_kind",
    "log_fault",
]

_log = logging.getLogger(__name__)


Fault = tuple[str, str]
"""Error code and message of a failed request, for its client."""
STRATEGY_ERROR = "strategy_error"
"""Error code of a request that fails because of a plugin."""


class RequestFault(Exception):
    """A request cannot be served, though the engine works; it ends with an error.

    Attributes:
        slot: queue slot of its sequence.
        code, sentence: error code and message for the client.
    """

    def __init__(self, slot: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.slot = slot
        self.code = code
        self.sentence = sentence


class ProcessorUnavailable(Exception):
    """A request needs a processor that cannot serve it; the message is for its client."""


class RequestRejected(Exception):
    """A submission cannot be served by this engine; the message says why, for the client."""

    def __init__(self, sentence: str, code: str = "invalid_request") -> None:
        super().__init__(sentence)
        self.code = code


class attribute_faults:
    """Context manager that attributes any exception within it to a strategy."""

    __slots__ = ("_kind",)

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Convert an exception to a fault of the strategy.

        Raises:
            StrategyFault: instead of the original exception.
        """
        if error is not None and not isinstance(error, StrategyFault | RequestFault):
            raise StrategyFault(self._kind, repr(error)) from error


def failure(name: str) -> str:
    """Return the error message for clients of a failed logits processor; details are logged."""
    return f"the logits processor {name} failed; try again, or send the request without it"


def log_fault(who: str, error: BaseException, strategy: object, count: int, limit: int) -> None:
    """Log a fault of a strategy, in one line.

    Args:
        who: the strategy and its distribution.
        error: the fault.
        strategy: the strategy itself, if known.
        count: its faults so far.
        limit: number of faults after which it is quarantined.
    """
    is_last = count == limit
    _log.log(
        logging.ERROR if is_last else logging.WARNING,
        "%s %s (fault %d of %d)%s",
        who,
        describe_fault(error, strategy),
        count,
        limit,
        "; quarantined until `gatewayd swap` selects it again" if is_last else "",
    )


def describe_fault(error: BaseException, strategy: object = None) -> str:
    """Describe a fault, and where it occurred, in one line for the log.

    Args:
        error: the fault.
        strategy: named as the location if it did not raise.
    """
    is_named = isinstance(error, StrategyFault)
    cause = (error.__cause__ if is_named else None) or error
    if place := _place_of_raise(cause):
        return f"raised {describe_error(cause)} at {place}"
    what = f"returned an invalid result, {describe_error(cause)}"
    if isinstance(cause, StrategyFault):
        what = " ".join(cause.reason.split())
    if isinstance(cause, StrategyHang) or strategy is None:
        return what
    return f"{what}; it is {_place_of_class(type(strategy))}"


def _place_of_raise(error: BaseException) -> str:
    """Return where in a plugin's own code an exception was raised; empty if elsewhere."""
    # Tracebacks go from the outermost frame inwards.
    package, place, is_next = None, "", False
    for frame, line in traceback.walk_tb(error.__traceback__):
        # The wrapper that times a call to a plugin: the next frame is the plugin's. A plugin may
        # call another one, whose frames then count instead.
        if isinstance(frame.f_locals.get("account"), Account):
            package, place, is_next = None, "", True
            continue
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        if is_next:
            package, is_next = name, False
        # The innermost frame of the plugin's own package, not of a library that it has called.
        if package is not None and name == package:
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def _place_of_class(of: type) -> str:
    try:
        return f"{of.__name__} at {inspect.getsourcefile(of)}:{inspect.getsourcelines(of)[1]}"
    except (OSError, TypeError):
        return of.__name__


def faulty_kind(error: BaseException, bound: Mapping[Kind, object]) -> Kind | None:
    """Return the kind of the active strategy in whose call an exception was raised.

    The traceback is only examined after a fault, so calls without faults have no overhead.
    """
    if isinstance(error, StrategyFault):
        return error.kind
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        account = frame.f_locals.get("account")
        if isinstance(account, Account) and account.kind in bound:
            # The innermost one: a scheduler may call the prefix cache, which may fail.
            found = account.kind
    return found
