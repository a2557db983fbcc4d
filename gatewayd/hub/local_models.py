"""Models of this machine for a running daemon: list, pull and delete them."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from gatewayd.hub.errors import IN_USE, HubError, of_store
from gatewayd.hub.pull_events import PullEvent
from gatewayd.hub.pull_process import ModelPulls
from gatewayd.hub.reference import parse_reference
from gatewayd.hub.store import store_folder
from gatewayd.hub.store_locks import hold_served
from gatewayd.hub.stored_models import StoreEntry, delete_stored, list_stored

_log = logging.getLogger(__name__)


class LocalModels:
    """The store of a daemon; called from the event loop only.

    Args:
        served: folders and GGUF files that are being served, which no process deletes while
            this object lives.
        pulls: runs pulls.
    """

    def __init__(self, served: Sequence[Path] = (), pulls: ModelPulls | None = None) -> None:
        for path in served:
            self.hold(path)
        self._pulls = ModelPulls() if pulls is None else pulls
        self._deleting = asyncio.Lock()

    def hold(self, path: Path) -> Callable[[], object]:
        """Let no process delete a folder or file while this object lives; return what ends that."""
        descriptor = hold_served(path)
        if descriptor is None:
            return lambda: None
        return weakref.finalize(self, os.close, descriptor)

    async def list(self) -> Sequence[StoreEntry]:
        """Return the complete models, sorted by name.

        Raises:
            HubError: the store cannot be read.
        """
        try:
            entries = await asyncio.to_thread(list_stored)
        except OSError as error:
            raise of_store(error, store_folder()) from error
        return [entry for entry in entries if not entry.problem]

    def pull(self, name: str) -> AsyncGenerator[PullEvent, None]:
        """Pull a model; see ``ModelPulls.pull``.

        Raises:
            HubError: the name is none; later, it cannot be fetched.
        """
        reference = parse_reference(name)
        _log.info("pull of %s requested", reference)
        return self._pulls.pull(reference)

    async def delete(self, name: str) -> None:
        """Delete a model.

        Raises:
            HubError: it is not there, or is being served or pulled.
        """
        reference = parse_reference(name)
        # One at a time: each looks for contents to which no other model refers.
        async with self._deleting:
            if reference.repo in self._pulls.repos:
                raise HubError(f"{reference.repo} is being pulled; wait for its end", IN_USE)
            try:
                freed = await asyncio.to_thread(delete_stored, reference)
            except OSError as error:
                raise of_store(error, store_folder()) from error
        _log.info("deleted %s from the store: %d bytes", reference, freed)

    async def close(self) -> None:
        """Stop all pulls."""
        await self._pulls.close()
