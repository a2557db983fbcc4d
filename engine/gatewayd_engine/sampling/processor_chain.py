"""The chain of logits processors: who is in it, and who left it and is still needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.sampling.processors import Processors
from gatewayd_hooks.host.fence import Fence
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.strategy import Kind

_KIND = Kind.LOGITS_PROCESSOR


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """One logits processor of the chain.

    Attributes:
        choice: what it was made from.
        strategy: itself.
        watched: the same, timed.
    """

    choice: StrategyChoice
    strategy: Any
    watched: Any


class ProcessorChain:
    """Logits processors, in the order in which they are applied.

    Args:
        choices: what was configured.
        open_: opens a strategy; raises whatever is wrong with it.
        close: closes a strategy, watched.
        fence: knows who is quarantined.
        ledger: times their calls.

    Attributes:
        links: of requests that come now.
    """

    def __init__(
        self,
        choices: Sequence[StrategyChoice],
        open_: Callable[[StrategyChoice], Any],
        close: Callable[[Any], None],
        fence: Fence,
        ledger: Ledger,
    ) -> None:
        self._close = close
        self._fence = fence
        self._ledger = ledger
        self._left: list[Link] = []
        self.links = [self._link(choice, open_) for choice in choices]

    @property
    def names(self) -> list[str]:
        """Their names, in order."""
        return [link.choice.name for link in self.links]

    @property
    def watched(self) -> list[Any]:
        """What is called, in order."""
        return [link.watched for link in self.links]

    @property
    def sound(self) -> list[StrategyChoice]:
        """What those were made from that are not quarantined."""
        return [
            link.choice
            for link in self.links
            if not self._fence.is_quarantined(_KIND, link.choice.name)
        ]

    def _link(self, choice: StrategyChoice, open_: Callable[[StrategyChoice], Any]) -> Link:
        strategy = open_(choice)
        return Link(choice, strategy, self._ledger.watch(_KIND, choice.name, strategy))

    def replace(
        self, choices: Sequence[StrategyChoice], open_: Callable[[StrategyChoice], Any]
    ) -> None:
        """Another chain for requests that come from now on; those that stay keep what they know.

        Raises:
            Exception: what is wrong with a new one; nothing has changed then.
        """
        sound = self.sound
        stay = {link.choice.name: link for link in self.links if link.choice in sound}
        links: list[Link] = []
        opened: list[Link] = []
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
            self._fence.forgive(_KIND, link.choice.name)
        self._left += [link for link in self.links if link not in links]
        self.links = links

    def close_left(self, processors: Processors) -> None:
        """Close those that left the chain and that no running request has any more."""
        if not self._left:
            return
        processors.drop_left()
        for link in [link for link in self._left if not processors.has(link.watched)]:
            self._left.remove(link)
            self._close(link.watched)

    def close(self) -> None:
        """Close them all."""
        for link in self.links + self._left:
            self._close(link.watched)
