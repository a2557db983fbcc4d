"""Who of several branches goes first.

Branches begin with the same tokens. The first that has something to generate computes them, the
others wait for its first token and find them in the server's cache, the end of the last page
included where the server shares that. Sent at once, they might come to several engines, each of
which would compute the same.
"""

from __future__ import annotations

import asyncio


class Gate:
    """Of one fork."""

    def __init__(self) -> None:
        self._is_led = False
        self._opened = asyncio.Event()

    def lead(self) -> bool:
        """Go first, if nobody does or did."""
        is_first, self._is_led = not self._is_led, True
        return is_first

    def open(self) -> None:
        """The beginning is computed, or whoever went first has failed."""
        self._opened.set()

    async def wait(self) -> None:
        """Wait for that."""
        await self._opened.wait()


class Passage:
    """One branch on its way through the gates of all forks that it comes from, outermost first.

    All branches meet the gates in this order, so nobody waits for one who waits for him.
    """

    def __init__(self, gates: tuple[Gate, ...]) -> None:
        self._gates = gates
        self._led: list[Gate] = []

    async def enter(self) -> None:
        """Wait for those who go first."""
        for gate in self._gates:
            if gate.lead():
                self._led.append(gate)
            else:
                await gate.wait()

    @property
    def leads(self) -> bool:
        """Whether others wait for this one."""
        return bool(self._led)

    def open(self) -> None:
        """Let them go on."""
        for gate in self._led:
            gate.open()
