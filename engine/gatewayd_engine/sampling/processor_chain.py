"""Lifecycle of the logits processor chain, including replaced processors still in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.sampling.processors import Processors
from gatewayd_hooks.host.fence import Fence
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.strategy import Kind

_KIND = Kind.LOGITS_PROCESSOR


@dataclass(frozen=True, slots=True, eq=False)
class ChainedProcessor:
    """A logits processor of the chain.

    Attributes:
        choice: its configuration.
        strategy: the processor.
        watched: the processor with its calls timed.
    """

    choice: StrategyChoice
    strategy: Any
    watched: Any


class ProcessorChain:
    """Logits processors, in the order in which they are applied.

    Args:
        choices: configuration of the processors.
        open_: opens a strategy; raises if that fails.
        close: closes a strategy, given its timed wrapper.
        fence: quarantine of plugins.
        plugin_times: times their calls.

    Attributes:
        links: processors for new requests.
    """

    def __init__(
        self,
        choices: Sequence[StrategyChoice],
        open_: Callable[[StrategyChoice], Any],
        close: Callable[[Any], None],
        fence: Fence,
        plugin_times: PluginTimes,
    ) -> None:
        self._close = close
        self._fence = fence
        self._plugin_times = plugin_times
        self._replaced: list[ChainedProcessor] = []
        self.links = [self._link(choice, open_) for choice in choices]

    @property
    def names(self) -> list[str]:
        """Names of the processors, in order."""
        return [link.choice.name for link in self.links]

    @property
    def watched(self) -> list[Any]:
        """Timed processors, in order."""
        return [link.watched for link in self.links]

    @property
    def sound(self) -> list[StrategyChoice]:
        """Configurations of the processors that are not quarantined."""
        return [
            link.choice
            for link in self.links
            if not self._fence.is_quarantined(_KIND, link.choice.name)
        ]

    def _link(
        self, choice: StrategyChoice, open_: Callable[[StrategyChoice], Any]
    ) -> ChainedProcessor:
        strategy = open_(choice)
        return ChainedProcessor(
            choice, strategy, self._plugin_times.watch(_KIND, choice.name, strategy)
        )

    def replace(
        self, choices: Sequence[StrategyChoice], open_: Callable[[StrategyChoice], Any]
    ) -> None:
        """Replace the chain for new requests; unchanged processors are reused with their state.

        Raises:
            Exception: a new processor cannot be opened; the chain is unchanged then.
        """
        # A quarantined processor is opened again, even if its choice is unchanged.
        sound = self.sound
        stay = {link.choice.name: link for link in self.links if link.choice in sound}
        links: list[ChainedProcessor] = []
        opened: list[ChainedProcessor] = []
        try:
            for choice in choices:
                link = stay.get(choice.name)
                if link is None or link.choice != choice:
                    link = self._link(choice, open_)
                    opened.append(link)
                links.append(link)
        except BaseException:
            for link in opened:
                self._close(link.watched)
            raise
        for link in opened:
            self._fence.reset_faults(_KIND, link.choice.name)
        # Closed once no running request uses them.
        self._replaced += [link for link in self.links if link not in links]
        self.links = links

    def close_replaced(self, processors: Processors) -> None:
        """Close replaced processors that no running request uses any more."""
        if not self._replaced:
            return
        processors.release_replaced()
        for link in [link for link in self._replaced if not processors.has(link.watched)]:
            self._replaced.remove(link)
            self._close(link.watched)

    def close(self) -> None:
        """Close all processors."""
        for link in self.links + self._replaced:
            self._close(link.watched)
