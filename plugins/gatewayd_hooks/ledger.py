"""What strategies cost: every call is timed, and the one that runs now is known.

The methods of a strategy are wrapped once, when they are bound. Time spent in another strategy
that the first one asks is the other's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gatewayd_hooks.fence import StrategyHang
from gatewayd_hooks.marker import Marker
from gatewayd_hooks.strategy import Kind

_CREDIT = 10
"""Budgets by which calls may exceed theirs, all together, before it is a fault."""


class Hang(BaseException):
    """Raised inside a call that has lasted too long; becomes ``StrategyHang`` where it left."""


class Account:
    """One method of one strategy.

    Attributes:
        kind, name, method: whose it is.
        number: of the strategy, in the marker.
        calls: so far.
        seconds: of them all.
        longest: seconds of one.
        debt: seconds beyond the budget that later calls have not made good.
        settled: calls when the debt was last looked at.
    """

    __slots__ = (
        "calls",
        "debt",
        "kind",
        "longest",
        "method",
        "name",
        "number",
        "seconds",
        "settled",
    )

    def __init__(self, kind: Kind, name: str, method: str, number: int) -> None:
        self.kind = kind
        self.name = name
        self.method = method
        self.number = number
        self.calls = self.settled = 0
        self.seconds = self.longest = self.debt = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one strategy has cost so far.

    Attributes:
        calls: of all its methods.
        seconds: in them.
        longest: seconds of the slowest call.
    """

    calls: int
    seconds: float
    longest: float


@dataclass(frozen=True, slots=True)
class Overrun:
    """A strategy that keeps exceeding its budget.

    Attributes:
        kind, name: which.
        reason: in figures.
    """

    kind: Kind
    name: str
    reason: str


class Watched:
    """A strategy whose methods are timed, each from the first time it is looked up."""

    def __init__(self, ledger: Ledger, kind: Kind, name: str, strategy: Any) -> None:  # noqa: ANN401
        self._ledger = ledger
        self._kind = kind
        self._name = name
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        value = getattr(self._strategy, name)
        if callable(value):
            value = self._ledger.timed(self._kind, self._name, name, value)
            setattr(self, name, value)
        return value


class Ledger:
    """The accounts of one process; not for threads.

    Args:
        budget: seconds that a call may take on average.
        marker: told who runs.

    Attributes:
        budget: may be changed at any time.
        current: whose call runs; None outside of strategies.
        since: when it began, less what it spent in others; seconds of ``time.perf_counter``.
    """

    def __init__(self, budget: float, marker: Marker | None = None) -> None:
        self.budget = budget
        self.current: Account | None = None
        self.since = 0.0
        self._marker = marker or Marker.private()
        self._accounts: dict[tuple[Kind, str, str], Account] = {}
        self._overruns: dict[tuple[Kind, str], Overrun] = {}

    def watch(self, kind: Kind, name: str, strategy: Any) -> Any:  # noqa: ANN401 - any kind
        """A strategy whose calls are timed under its name; the strategy itself is unchanged."""
        return Watched(self, kind, name, strategy)

    def timed(
        self, kind: Kind, name: str, method: str, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        """One callable of a plugin, timed under its name."""
        return self._timed(self._account(kind, name, method), call)

    def costs(self) -> dict[tuple[Kind, str], Cost]:
        """Every strategy that was ever watched."""
        found: dict[tuple[Kind, str], Cost] = {}
        for account in self._accounts.values():
            key = account.kind, account.name
            other = found.get(key, Cost(0, 0.0, 0.0))
            found[key] = Cost(
                other.calls + account.calls,
                other.seconds + account.seconds,
                max(other.longest, account.longest),
            )
        return found

    def take_overruns(self, *kinds: Kind) -> list[Overrun]:
        """Who, of these kinds or of all, has exceeded the budget too often since the last call."""
        if not self._overruns:
            return []
        keys = [key for key in self._overruns if not kinds or key[0] in kinds]
        return [self._overruns.pop(key) for key in keys]

    def _account(self, kind: Kind, name: str, method: str) -> Account:
        key = kind, name, method
        if key not in self._accounts:
            number = self._marker.number(f"{kind}.{name}")
            self._accounts[key] = Account(kind, name, method, number)
        return self._accounts[key]

    def _timed(self, account: Account, method: Callable[..., Any]) -> Callable[..., Any]:
        clock, mark, number = time.perf_counter, self._marker.bytes, account.number

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any method
            outer, since = self.current, self.since
            try:
                began = self.since = clock()
                self.current = account
                mark[0] = number
                try:
                    return method(*args, **kwargs)
                finally:
                    now = clock()
                    spent = now - self.since
                    # The caller is not charged for what was spent here.
                    self.since = since + now - began
                    self.current = outer
                    mark[0] = outer.number if outer is not None else 0
                    account.calls += 1
                    account.seconds += spent
                    if spent > account.longest:
                        account.longest = spent
                    if spent > self.budget:
                        self._exceed(account, spent)
            except Hang as hang:
                # It may have come in the middle of the lines above.
                self.current, self.since = outer, clock()
                mark[0] = outer.number if outer is not None else 0
                raise StrategyHang(
                    account.kind, f"{account.name}.{account.method} hung at {hang}"
                ) from None

        return call

    def _exceed(self, account: Account, spent: float) -> None:
        """Put a slow call on the debt of its method; quicker ones since have made some good."""
        spared = (account.calls - 1 - account.settled) * self.budget
        account.settled = account.calls
        account.debt = max(0.0, account.debt - spared) + spent - self.budget
        if account.debt > _CREDIT * self.budget:
            account.debt = 0.0
            self._overruns[account.kind, account.name] = Overrun(
                account.kind,
                account.name,
                f"{account.name}.{account.method} takes {1000 * spent:.0f} ms, not for the first "
                f"time; the budget is {1000 * self.budget:g} ms a call",
            )
