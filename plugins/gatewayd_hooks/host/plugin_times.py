"""Time accounting of strategies: every call is timed, and the running one is known.

The methods of a strategy are wrapped once, when they are bound. Time spent in another strategy that
the first one calls is charged to the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gatewayd_hooks.host.budgets import Overrun, OverrunCounts
from gatewayd_hooks.host.fence import StrategyFault, StrategyHang
from gatewayd_hooks.host.marker import Marker
from gatewayd_hooks.strategy import Kind

_RARE = frozenset(("open", "close", "export_state", "import_state", "compact"))
"""Methods that are called once per strategy, or per prompt, and that no budget covers."""


class Hang(BaseException):
    """Raised inside a call that exceeded its time limit.

    Becomes ``StrategyHang`` at its boundary.
    """


@dataclass(slots=True, eq=False)
class Account:
    """Time account of one method of one strategy.

    Attributes:
        kind, name, method: of the account.
        number: of the strategy, in the marker.
        key: kind and name, as ``kind.name``.
        calls: number so far.
        seconds: total of all calls.
        longest: seconds of the slowest call.
        due: seconds since the last settlement.
        reported: seconds already returned by ``take_spent``.
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
    reported: float = 0.0

    def __post_init__(self) -> None:
        self.key = f"{self.kind}.{self.name}"


@dataclass(frozen=True, slots=True)
class Cost:
    """Total cost of one strategy.

    Attributes:
        calls: of all its methods.
        seconds: total of all calls.
        longest: seconds of the slowest call.
    """

    calls: int
    seconds: float
    longest: float


class Watched:
    """Proxy of a strategy whose methods are timed, each from the first time it is looked up."""

    def __init__(self, plugin_times: PluginTimes, kind: Kind, name: str, strategy: Any) -> None:  # noqa: ANN401
        self._plugin_times = plugin_times
        self._kind = kind
        self._name = name
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        value = getattr(self._strategy, name)
        if callable(value):
            value = self._plugin_times.timed(self._kind, self._name, name, value)
            # Later lookups find the attribute and do not come here.
            setattr(self, name, value)
        return value


class PluginTimes:
    """Accounts of one process; not thread-safe, except ``marking``.

    Args:
        budget: seconds that a strategy may take in a step, or in a call outside of steps.
        marker: is updated with the running strategy.

    Attributes:
        budget: may be changed at any time.
        current: account of the running call; None outside of strategies.
        since: when it started, less the time spent in others; seconds of ``time.perf_counter``.
    """

    def __init__(self, budget: float, marker: Marker | None = None) -> None:
        self.budget = budget
        self.current: Account | None = None
        self.since = 0.0
        self._marker = marker or Marker.private()
        self._accounts: dict[tuple[Kind, str, str], Account] = {}
        self._due: list[Account] = []
        self._settled_at = time.perf_counter()
        self._overrun_counts = OverrunCounts()

    def watch(self, kind: Kind, name: str, strategy: Any) -> Any:  # noqa: ANN401 - any kind
        """Return a proxy whose calls are timed under a name; the strategy itself is unchanged."""
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
        """Return a callable of a plugin, timed under its name.

        Args:
            kind: of the strategy.
            name: of the strategy.
            method: of the account.
            call: what to call.
            has_budget: whether its time counts against its strategy's budget.
        """
        return self._timed(self._account(kind, name, method), call, has_budget=has_budget)

    def marking(self, kind: Kind, names: Sequence[str]) -> Callable[[str | None], None]:
        """Return a thread-safe function that marks which strategy is being opened."""
        numbers = {name: self._marker.number(f"{kind}.{name}") for name in names}

        def mark(name: str | None) -> None:
            self._marker.bytes[1] = 0 if name is None else numbers[name]

        return mark

    def record_call(self, kind: Kind, name: str, method: str, seconds: float) -> None:
        """Add a call that was timed elsewhere."""
        account = self._account(kind, name, method)
        account.calls += 1
        account.seconds += seconds
        # Counts as returned by `take_spent`, which is for calls that are timed here.
        account.reported += seconds
        account.longest = max(account.longest, seconds)

    def take_spent(self) -> dict[str, float]:
        """Return and reset the seconds by ``kind.name``, without calls timed elsewhere."""
        found: dict[str, float] = {}
        for account in self._accounts.values():
            seconds = account.seconds
            if seconds != account.reported:
                found[account.key] = found.get(account.key, 0.0) + seconds - account.reported
                account.reported = seconds
        return found

    def costs(self) -> dict[tuple[Kind, str], Cost]:
        """Return the costs of every strategy that was ever watched."""
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
        """End a step: compare each strategy's time since the last one with its budget."""
        now = time.perf_counter()
        seconds, self._settled_at = now - self._settled_at, now
        for key, spent in self._take_due().items():
            self._overrun_counts.judge_step(key, spent, self.budget, seconds)

    def settle_call(self, kind: Kind, processor: float) -> None:
        """End a call outside of steps: compare its time with its strategy's budget.

        Args:
            kind: of the strategy.
            processor: seconds of ``time.thread_time`` that the call took.
        """
        for key, spent in self._take_due().items():
            if key[0] is kind:
                self._overrun_counts.judge_call(key, spent, self.budget, processor)

    def take_overruns(self, *kinds: Kind) -> list[Overrun]:
        """Return and clear repeated budget overruns, of these kinds or of all."""
        return self._overrun_counts.pop_overruns(*kinds)

    def _take_due(self) -> dict[tuple[Kind, str], float]:
        """Return and reset the seconds of each strategy since the last call."""
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
        # Bound once: this wrapper is on the path of every call of a strategy.
        clock, mark, number = time.perf_counter, self._marker.bytes, account.number

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any method
            # Calls nest, and the outer one goes on with its own start time.
            outer, since = self.current, self.since
            try:
                # Before `current`: the watchdog reads both at any time, and must not see this call
                # with the start of an earlier one.
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
                        # The accounts to settle, so that a step does not visit all that exist.
                        if not account.due:
                            self._due.append(account)
                        account.due += spent
            except Hang as hang:
                # It may have been raised anywhere in the lines above.
                self.current, self.since = outer, clock()
                mark[0] = outer.number if outer is not None else 0
                raise StrategyHang(
                    account.kind, f"{account.name}.{account.method} hung at {hang}"
                ) from None
            except Exception:
                raise
            except BaseException as error:
                # SystemExit and the like are for the owner of the process, which a strategy is not.
                raise StrategyFault(
                    account.kind, f"{account.name}.{account.method} raised {error!r}"
                ) from error

        return call
