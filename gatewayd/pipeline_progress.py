"""How far a request with a reservation has come: what is settled if the daemon is killed now."""

from __future__ import annotations

from gatewayd.tenants.account import Ticket


class Progress:
    """Marked once per step and sequence at most, before a client is told; see ``marks``.

    Args:
        ticket: of the request.
    """

    __slots__ = ("_cached", "_generated", "_prompt", "_reached", "_ticket")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._reached: dict[int, int] = {}
        self._generated = self._prompt = self._cached = 0

    def computed(self, prompt: int, tokens: int, cached: int) -> None:
        """So many tokens of a prompt are computed, whichever choice needed them.

        Args:
            prompt: which one, among those of the request.
            tokens: of it, those that were cached too.
            cached: of these; the first choice that tells knows.
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
        """So many tokens have come; less than none where a choice starts over."""
        self._generated += tokens
        self._mark()

    def _mark(self) -> None:
        self._ticket.mark(self._generated, self._prompt, self._cached)
