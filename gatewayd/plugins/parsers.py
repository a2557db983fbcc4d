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
from typing import Any, TypeVar

from gatewayd.config.strategies import AUTO, NONE, StrategyTable
from gatewayd.config.tables import Config
from gatewayd.plugins.fenced import Fenced
from gatewayd.text.output_parts import Parsers
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
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


class FencedParser(Fenced[StrategyT]):
    """A parser strategy, whose exceptions are logged and propagate."""

    def __init__(
        self,
        kind: Kind,
        strategy: StrategyT,
        name: str,
        plugin_times: PluginTimes,
        watchdog: Watchdog,
    ) -> None:
        self.kind = kind
        super().__init__(strategy, name, plugin_times, watchdog)
        self._is_known_broken = False

    def parser(self, *args: Any) -> OutputParser:  # noqa: ANN401 - the kind's own
        """Create a parser whose calls are timed, and interrupted if they hang."""
        make = self.strategy.parser  # type: ignore[attr-defined]
        return _Watched(self, self.call("parser", make, *args))

    def call(self, method: str, call: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401
        """Call the plugin; exceptions are logged and propagate."""
        # Time accounts are not thread-safe, and large outputs are parsed in other threads.
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
            self.kind.replace("_", " "),
            self.name,
            type(error).__name__,
            error,
            exc_info=error,
        )

    def timed(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of the plugin with timing; not for other threads."""
        return self._plugin_times.timed(self.kind, self.name, method, call)

    def armed(self, work: Callable[[], T]) -> T:
        """Run work that calls parsers repeatedly, with the timer set once."""
        # Signals are delivered to the main thread; large outputs are parsed in others.
        if not _is_main() or self._watchdog.is_armed:
            return work()
        # Nested use would disarm the outer timer at its end.
        with self._watchdog.armed():
            return work()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Watched:
    """A guarded parser."""

    def __init__(self, fenced: FencedParser[Any], parser: OutputParser) -> None:
        self._fenced = fenced
        self._parser = parser
        # Wrapped once: it is called for every piece of output.
        self._timed_feed = fenced.timed("feed", parser.feed)

    def feed(self, text: str) -> Sequence[Part]:
        feed = self._timed_feed if _is_main() else self._parser.feed
        return self._checked(self._fenced.run(feed, text))

    def finish(self) -> Sequence[Part]:
        return self._checked(self._fenced.call("finish", self._parser.finish))

    def _checked(self, parts: Sequence[Part]) -> Sequence[Part]:
        if all(isinstance(part, Part) for part in parts):
            return parts
        error = TypeError("it returned something that is not a part of an answer")
        self._fenced.log_error(error)
        raise error


@dataclass(frozen=True, slots=True)
class ModelParsers:
    """Parsers of the served model.

    Attributes:
        tools: parser of tool calls; None without one.
        reasoning: parser of reasoning; None without one.
    """

    tools: FencedParser[ToolParserStrategy] | None = None
    reasoning: FencedParser[ReasoningParserStrategy] | None = None

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
        used: list[FencedParser[Any]] = [one for one in (calls, thought) if one is not None]
        marks = [fenced.strategy.marks for fenced in used]
        return Parsers(
            reasoning=None if thought is None else partial(thought.parser, prompt_end),
            tools=None if calls is None else partial(calls.parser, tools),
            most_calls=most_calls,
            keeps_reasoning=keeps_reasoning,
            # Both share one watchdog, so either can arm it for all.
            armed=used[0].armed,
            marks=frozenset(chain.from_iterable(marks)),
        )

    def bounds(self, prompt_end: str, *, continues: bool = False) -> Bounds | None:
        """Delimiters of reasoning that may precede the constrained part of an output.

        Args:
            prompt_end: the last characters of the prompt.
            continues: whether the output continues a text, and so begins without reasoning.
        """
        fenced = self.reasoning
        if fenced is None:
            return None
        try:
            found: Bounds | None = fenced.call("bounds", fenced.strategy.bounds, prompt_end)
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
        for fenced in (self.tools, self.reasoning):
            if fenced is not None:
                fenced.close()


def load_parsers(
    config: Config,
    host: PluginHost,
    resources: GatewayResources,
    plugin_times: PluginTimes,
    watchdog: Watchdog,
) -> ModelParsers:
    """Load and open the configured parsers, or those that suit the model's template.

    Raises:
        PluginError: a configured parser cannot be used.
    """

    def load(kind: Kind, table: StrategyTable) -> FencedParser[Any] | None:
        names = [table.strategy]
        if table.strategy == AUTO:
            rows = host.report()
            # Only built-in parsers are tried: a third-party plugin is imported only if it is named.
            names = sorted(
                row.name for row in rows if (row.kind, row.distribution) == (kind, PROJECT)
            )
        for name in names:
            if name == NONE:
                continue
            strategy = host.strategy(kind, name, table.settings(name))
            if table.strategy == AUTO and not strategy.suits(resources.chat_template):
                continue
            fenced = FencedParser(kind, strategy, name, plugin_times, watchdog)
            try:
                strategy.open(resources)
            except Exception as error:
                fenced.close()
                raise PluginError(f"{kind}.{name}", f"cannot be opened: {error}") from error
            return fenced
        return None

    return ModelParsers(
        tools=load(Kind.TOOL_PARSER, config.tool_parser),
        reasoning=load(Kind.REASONING_PARSER, config.reasoning_parser),
    )
