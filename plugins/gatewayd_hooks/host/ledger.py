"""What strategies cost: every call is timed, and the one that runs now is known.

The methods of a strategy are wrapped once, when they are bound. Time spent in another strategy
that the first one asks is the other's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gatewayd_hooks.host.budgets import Arrears, Overrun
from gatewayd_hooks.host.fence import StrategyFault, StrategyHang
from gatewayd_hooks.host.marker import Marker
from gatewayd_hooks.strategy import Kind

_RARE = frozenset(("open", "close", "export_state", "import_state", "compact"))
"""Methods that are called once in a strategy's life, or a prompt's, and that no budget covers."""


class Hang(BaseException):
    """Raised inside a call that has lasted too long; becomes ``StrategyHang`` where it left."""


@dataclass(slots=True, eq=False)
class Account:
    """One method of one strategy.

    Attributes:
        kind, name, method: whose it is.
        number: of the strategy, in the marker.
        key: kind and name, as ``kind.name``.
        calls: so far.
        seconds: of them all.
        longest: seconds of one.
        due: seconds of those since the ledger was settled.
        told: seconds of those that ``take_spent`` has told of.
    """

    kind: Kind
    name: str
    method: str
    number: int
    key: str = field(init=False)
    calls: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    due: float = 0.0
    told: float = 0.0

    def __post_init__(self) -> None:
        self.key = f"{self.kind}.{self.name}"


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
    """The accounts of one process; but for ``marking``, not for threads.

    Args:
        budget: seconds that a strategy may take in a step, or in a call outside of steps.
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
        self._due: list[Account] = []
        self._settled_at = time.perf_counter()
        self._arrears = Arrears()

    def watch(self, kind: Kind, name: str, strategy: Any) -> Any:  # noqa: ANN401 - any kind
        """A strategy whose calls are timed under its name; the strategy itself is unchanged."""
        return Watched(self, kind, name, strategy)

    def timed(
        self,
        kind: Kind,
        name: str,
        method: str,
        call: Callable[..., Any],
        *,
        has_budget: bool = True,
    ) -> Callable[..., Any]:
        """One callable of a plugin, timed under its name.

        Args:
            kind: of the strategy.
            name: of the strategy.
            method: that the account is of.
            call: what to call.
            has_budget: whether what it takes is held against its strategy's budget.
        """
        return self._timed(self._account(kind, name, method), call, has_budget=has_budget)

    def marking(self, kind: Kind, names: Sequence[str]) -> Callable[[str | None], None]:
        """Make what tells the marker, from any thread, which of these is opened beside the rest."""
        numbers = {name: self._marker.number(f"{kind}.{name}") for name in names}

        def mark(name: str | None) -> None:
            self._marker.bytes[1] = 0 if name is None else numbers[name]

        return mark

    def note(self, kind: Kind, name: str, method: str, seconds: float) -> None:
        """Add a call that was timed elsewhere."""
        account = self._account(kind, name, method)
        account.calls += 1
        account.seconds += seconds
        account.told += seconds
        account.longest = max(account.longest, seconds)

    def take_spent(self) -> dict[str, float]:
        """Seconds since the last call by ``kind.name``, but for calls that were timed elsewhere."""
        found: dict[str, float] = {}
        for account in self._accounts.values():
            seconds = account.seconds
            if seconds != account.told:
                found[account.key] = found.get(account.key, 0.0) + seconds - account.told
                account.told = seconds
        return found

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

    def settle_step(self) -> None:
        """A step is over: hold what each strategy took since the last one against its budget."""
        now = time.perf_counter()
        seconds, self._settled_at = now - self._settled_at, now
        for key, spent in self._take_due().items():
            self._arrears.judge_step(key, spent, self.budget, seconds)

    def settle_call(self, kind: Kind, processor: float) -> None:
        """A call outside of steps is over: hold it against its strategy's budget.

        Args:
            kind: of the strategy.
            processor: seconds of ``time.thread_time`` that the call took.
        """
        for key, spent in self._take_due().items():
            if key[0] is kind:
                self._arrears.judge_call(key, spent, self.budget, processor)

    def take_overruns(self, *kinds: Kind) -> list[Overrun]:
        """Who, of these kinds or of all, has exceeded the budget too often since the last call."""
        return self._arrears.take(*kinds)

    def _take_due(self) -> dict[tuple[Kind, str], float]:
        """Seconds of each strategy since the last call."""
        found: dict[tuple[Kind, str], float] = {}
        for account in self._due:
            if account.method not in _RARE:
                key = account.kind, account.name
                found[key] = found.get(key, 0.0) + account.due
            account.due = 0.0
        self._due.clear()
        return found

    def _account(self, kind: Kind, name: str, method: str) -> Account:
        key = kind, name, method
        if key not in self._accounts:
            number = self._marker.number(f"{kind}.{name}")
            self._accounts[key] = Account(kind, name, method, number)
        return self._accounts[key]

    def _timed(
        self, account: Account, method: Callable[..., Any], *, has_budget: bool
    ) -> Callable[..., Any]:
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
                    if has_budget:
                        if not account.due:
                            self._due.append(account)
                        account.due += spent
            except Hang as hang:
                # It may have come in the middle of the lines above.
                self.current, self.since = outer, clock()
                mark[0] = outer.number if outer is not None else 0
                raise StrategyHang(
                    account.kind, f"{account.name}.{account.method} hung at {hang}"
                ) from None
            except Exception:
                raise
            except BaseException as error:
                # SystemExit and its like are for whoever owns the process, which no strategy does.
                raise StrategyFault(
                    account.kind, f"{account.name}.{account.method} raised {error!r}"
                ) from error

        return call
