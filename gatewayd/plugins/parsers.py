"""Parsers of the model's output, chosen by the configuration or by its chat template.

Each parser is guarded like any strategy; if it raises, that output is returned as text.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

from gatewayd.config.strategies import AUTO, NONE, StrategyTable
from gatewayd.config.tables import Config
from gatewayd.text.output_parts import Parsers
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.markers import PROJECT
from gatewayd_hooks.parsing import (
    Bounds,
    OutputParser,
    Part,
    ReasoningParserStrategy,
    Tool,
    ToolParserStrategy,
)
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind, Strategy

_log = logging.getLogger(__name__)

T = TypeVar("T")
StrategyT = TypeVar("StrategyT", bound=Strategy)


class ParserSlot(Generic[StrategyT]):
    """An open parser strategy with its ledger and watchdog.

    Attributes:
        strategy: the strategy.
        name: its name.
    """

    def __init__(
        self, kind: Kind, name: str, strategy: StrategyT, ledger: Ledger, watchdog: Watchdog
    ) -> None:
        self.strategy = strategy
        self.name = name
        self._kind = kind
        self._ledger = ledger
        self._watchdog = watchdog
        self._is_known_broken = False

    def parser(self, *args: Any) -> OutputParser:  # noqa: ANN401 - the kind's own
        """Create a parser whose calls are timed, and interrupted if they hang."""
        make = self.strategy.parser  # type: ignore[attr-defined]
        return _Watched(self, self.call("parser", make, *args))

    def call(self, method: str, call: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401
        """Call the plugin; exceptions are logged and propagate."""
        timed = self.timed(method, call) if _is_main() else call
        return self.run(timed, *args)

    def run(self, call: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401
        """Call a function that is timed already; exceptions are logged and propagate."""
        try:
            return self.armed(lambda: call(*args))
        except Exception as error:
            self.log_error(error)
            raise

    def log_error(self, error: Exception) -> None:
        """Log an error; as an error only once, since each output may repeat it."""
        level = logging.DEBUG if self._is_known_broken else logging.ERROR
        self._is_known_broken = True
        _log.log(
            level,
            "%s %s failed, returning the rest of the answer as text: %s: %s",
            self._kind.replace("_", " "),
            self.name,
            type(error).__name__,
            error,
            exc_info=error,
        )

    def timed(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of the plugin with timing; not for other threads."""
        return self._ledger.timed(self._kind, self.name, method, call)

    def armed(self, work: Callable[[], T]) -> T:
        """Run work that calls parsers repeatedly, with the timer set once."""
        # Signals are delivered to the main thread; large outputs are parsed in others.
        if not _is_main() or self._watchdog.is_armed:
            return work()
        self._watchdog.arm()
        try:
            return work()
        finally:
            self._watchdog.disarm()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Watched:
    """A guarded parser."""

    def __init__(self, seat: ParserSlot[Any], parser: OutputParser) -> None:
        self._seat = seat
        self._parser = parser
        self._timed_feed = seat.timed("feed", parser.feed)

    def feed(self, text: str) -> Sequence[Part]:
        feed = self._timed_feed if _is_main() else self._parser.feed
        return self._checked(self._seat.run(feed, text))

    def finish(self) -> Sequence[Part]:
        return self._checked(self._seat.call("finish", self._parser.finish))

    def _checked(self, parts: Sequence[Part]) -> Sequence[Part]:
        if all(isinstance(part, Part) for part in parts):
            return parts
        error = TypeError("it returned something that is not a part of an answer")
        self._seat.log_error(error)
        raise error


@dataclass(frozen=True, slots=True)
class ModelParsers:
    """Parsers of the served model.

    Attributes:
        tools: parser of tool calls; None without one.
        reasoning: parser of reasoning; None without one.
    """

    tools: ParserSlot[ToolParserStrategy] | None = None
    reasoning: ParserSlot[ReasoningParserStrategy] | None = None

    def readers(
        self,
        tools: Sequence[Tool],
        *,
        prompt_end: str,
        most_calls: int | None = None,
        finds_reasoning: bool = True,
        keeps_reasoning: bool = True,
    ) -> Parsers | None:
        """Parsers of a request's output; None where all is text.

        Args:
            tools: tools of the request.
            prompt_end: the last characters of the prompt.
            most_calls: maximum of reported tool calls; None for all.
            finds_reasoning: whether reasoning is separated from the answer.
            keeps_reasoning: whether reasoning is reported.
        """
        calls = self.tools if tools else None
        thought = self.reasoning if finds_reasoning else None
        if calls is None and thought is None:
            return None
        seats: list[ParserSlot[Any]] = [seat for seat in (calls, thought) if seat is not None]
        marks = [seat.strategy.marks for seat in seats]
        return Parsers(
            reasoning=None if thought is None else partial(thought.parser, prompt_end),
            tools=None if calls is None else partial(calls.parser, tools),
            most_calls=most_calls,
            keeps_reasoning=keeps_reasoning,
            armed=seats[0].armed,
            marks=frozenset(chain.from_iterable(marks)),
        )

    def bounds(self, prompt_end: str, *, continues: bool = False) -> Bounds | None:
        """Delimiters of reasoning that may precede the constrained part of an output.

        Args:
            prompt_end: the last characters of the prompt.
            continues: whether the output continues a text, and so begins without reasoning.
        """
        seat = self.reasoning
        if seat is None:
            return None
        try:
            found: Bounds | None = seat.call("bounds", seat.strategy.bounds, prompt_end)
        except Exception:  # noqa: BLE001 - logged; the constraint applies from the beginning
            return None
        return None if found is not None and found.begin and continues else found

    def call_id(self, unique: str) -> str:
        """The id of a tool call in the format of the model's template."""
        if self.tools is None:
            return unique
        try:
            return str(self.tools.call("call_id", self.tools.strategy.call_id, unique))
        except Exception:  # noqa: BLE001 - logged; most templates accept the given id
            return unique

    def close(self) -> None:
        """Close the strategies."""
        for seat in (self.tools, self.reasoning):
            if seat is not None:
                _close(seat.strategy, seat.name)


def load_parsers(
    config: Config,
    host: PluginHost,
    resources: GatewayResources,
    ledger: Ledger,
    watchdog: Watchdog,
) -> ModelParsers:
    """Load and open the configured parsers, or those that suit the model's template.

    Raises:
        PluginError: a configured parser cannot be used.
    """

    def seat(kind: Kind, table: StrategyTable) -> ParserSlot[Any] | None:
        names = [table.strategy]
        if table.strategy == AUTO:
            rows = host.report()
            names = sorted(
                row.name for row in rows if (row.kind, row.distribution) == (kind, PROJECT)
            )
        for name in names:
            if name == NONE:
                continue
            strategy = host.strategy(kind, name, table.settings(name))
            if table.strategy == AUTO and not strategy.suits(resources.chat_template):
                continue
            try:
                strategy.open(resources)
            except Exception as error:
                _close(strategy, name)
                raise PluginError(f"{kind}.{name}", f"cannot be opened: {error}") from error
            return ParserSlot(kind, name, strategy, ledger, watchdog)
        return None

    return ModelParsers(
        tools=seat(Kind.TOOL_PARSER, config.tool_parser),
        reasoning=seat(Kind.REASONING_PARSER, config.reasoning_parser),
    )


def _close(strategy: Strategy, name: str) -> None:
    try:
        strategy.close()
    except Exception as error:  # noqa: BLE001 - it is not used any more
        _log.warning("parser %s failed while closing: %r", name, error)
