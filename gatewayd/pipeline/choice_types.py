"""Both sides of a choice: the request that it tells, and the scored tokens that it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from gatewayd.errors import GatewayError
from gatewayd.pipeline.progress import ReservationProgress
from gatewayd_engine.process.messages import TokenLogprobs


class ScoredToken(NamedTuple):
    """A generated token with its log-probabilities.

    Attributes:
        logprobs: its own and of its alternatives.
        start: characters of the text before it.
        end: characters with it.
        opens: whether a text begins with it.
    """

    logprobs: TokenLogprobs
    start: int
    end: int
    opens: bool


class ChoiceOwner(Protocol):
    """The request that a choice belongs to."""

    def wake(self) -> None:
        """There is something to take."""

    def gap_observer(self, prompt_index: int) -> Callable[[float], None]:
        """Who is told the seconds between chunks of a prompt's choice that has got its first."""

    def stop_choice(self, index: int) -> None:
        """The choice with this index ended by itself; the engine may stop."""

    def fail(self, error: GatewayError) -> None:
        """A choice failed, and so the request."""

    @property
    def progress(self) -> ReservationProgress | None:
        """Told what comes; None where nobody asks."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds."""
