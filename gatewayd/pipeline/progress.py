"""Progress of a request with a reservation: settled as usage if the daemon is killed."""

from __future__ import annotations

from gatewayd.tenants.account import Ticket


class ReservationProgress:
    """Writes a mark at most once per step and sequence, before tokens are delivered; see ``marks``.

    Args:
        ticket: of the request.
    """

    __slots__ = ("_cached", "_generated", "_prompt", "_reached", "_ticket")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._reached: dict[int, int] = {}
        self._generated = self._prompt = self._cached = 0

    def computed(self, prompt: int, tokens: int, cached: int) -> None:
        """Record how many tokens of a prompt are computed, by any of its choices.

        Args:
            prompt: which one, among those of the request.
            tokens: computed ones, including cached ones.
            cached: of these, from the cache; only the first report of a prompt counts.
        """
        before = self._reached.get(prompt)
        if before is None:
            before = 0
            self._cached += min(cached, tokens)
        if tokens > before:
            self._reached[prompt] = tokens
            self._prompt += tokens - before
            self._mark()

    def generated(self, tokens: int) -> None:
        """Add generated tokens; a negative number where a choice starts over."""
        self._generated += tokens
        self._mark()

    def _mark(self) -> None:
        self._ticket.mark(self._generated, self._prompt, self._cached)
