"""Interfaces of a choice: the request that owns it, and the scored tokens it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from gatewayd.errors import GatewayError
from gatewayd.pipeline.progress import ReservationProgress
from gatewayd_engine.process.messages import TokenLogprobs


class ScoredToken(NamedTuple):
    """A generated token with its log-probabilities.

    Attributes:
        logprobs: of the token and of its top alternatives.
        start: offset in characters of the token's text.
        end: offset in characters of the end of its text.
        opens: whether it is the first token of a text.
    """

    logprobs: TokenLogprobs
    start: int
    end: int
    opens: bool


class RelayedToken(NamedTuple):
    """A token of an upstream with its log-probabilities.

    Attributes:
        shown: OpenAI's object of it.
        start: offset in characters of the token's text.
    """

    shown: Mapping[str, Any]
    start: int


class ChoiceOwner(Protocol):
    """The request that a choice belongs to."""

    def wake(self) -> None:
        """Wake the request's waiter: output is buffered."""

    def gap_observer(self, prompt_index: int) -> Callable[[float], None]:
        """Return the observer of seconds between chunks; asked for after a choice's first chunk."""

    def stop_choice(self, index: int) -> None:
        """Cancel the sequence of a choice that ended by a stop string."""

    def fail(self, error: GatewayError) -> None:
        """Fail the request because one of its choices failed."""

    def count_prompt(self, prompt_index: int, tokens: int) -> None:
        """Correct the number of tokens of a prompt, which only an upstream knows."""

    @property
    def progress(self) -> ReservationProgress | None:
        """Progress of the request's budget reservation; None without a marked one."""

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic clock, in seconds."""
