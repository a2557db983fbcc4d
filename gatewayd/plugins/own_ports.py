"""Ports of protocols that serve themselves: started and stopped, their faults fenced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from gatewayd_hooks.protocols import ProtocolStrategy, ServesItself

_log = logging.getLogger(__name__)

_START_SECONDS = 10.0
"""After which the start of a protocol is cancelled."""


class OwnPorts:
    """Protocols that listen on ports of their own.

    Args:
        protocols: all protocols, by name.
    """

    def __init__(self, protocols: Sequence[tuple[str, ProtocolStrategy]]) -> None:
        self._protocols = [
            (name, protocol) for name, protocol in protocols if isinstance(protocol, ServesItself)
        ]

    async def start(self) -> None:
        """Start them; the failure of one is logged."""
        for name, protocol in self._protocols:
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await protocol.start()
            except Exception:  # noqa: BLE001 - a plugin may raise anything
                _log.exception("protocol %s cannot serve its own port", name)

    async def stop(self, seconds: float) -> None:
        """Stop them and wait for their requests, at most this long."""
        await asyncio.gather(
            *[_stop(name, protocol, seconds) for name, protocol in self._protocols]
        )


async def _stop(name: str, protocol: ServesItself, seconds: float) -> None:
    try:
        await protocol.stop(seconds)
    except Exception:  # noqa: BLE001 - a plugin may raise anything
        _log.exception("protocol %s failed while it stopped", name)
