"""Prefix cache that identifies a page by the digest of every token up to its end.

The digest of a page covers the digest of the page before it, so equal digests mean equal prefixes.
The chain starts from the salt, with a random key per process: outsiders cannot compute a digest,
search for collisions, or infer from a hit what clients with another salt have sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.helpers.handover import HandoverState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

Trail = list[bytes]
"""Digest of the salt, then one for each full page hashed so far."""

_FORM = "hash/1"
_DIGEST_BYTES = 16
_TOKEN_BYTES = 4


class HashChain:
    """Maps of digests to pages, and of pages to digests."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._page_size = 0
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._is_mapped = np.zeros(0, np.bool_)

    def open(self, resources: EngineResources) -> None:
        """Read the page size and the number of pages."""
        self._page_size = resources.page_size
        self._is_mapped = np.zeros(resources.num_pages, np.bool_)

    def close(self) -> None:
        """Clear the maps."""
        self._page_of.clear()
        self._digest_of.clear()

    def export_state(self) -> HandoverState:
        """Return the maps, and the key with which the digests in trails were computed."""
        maps = (self._page_of, self._digest_of, self._is_mapped)
        return HandoverState(_FORM, (self._key, self._page_size, *maps))

    def import_state(self, state: HandoverState) -> bool:
        """Take over the maps of another; copied, because its ``close`` clears them."""
        if state.form != _FORM:
            return False
        key, page_size, page_of, digest_of, is_mapped = state.content
        if page_size != self._page_size or len(is_mapped) != len(self._is_mapped):
            return False
        self._key = key
        self._page_of, self._digest_of = dict(page_of), dict(digest_of)
        self._is_mapped = is_mapped.copy()
        return True

    def begin(self, tokens: NDArray[np.int32], salt: bytes) -> Trail:
        """Hash the salt and the full pages of a prompt."""
        # The length separates the salt from the tokens after it.
        trail = [self._digest(len(salt).to_bytes(8, "little") + salt)]
        self._extend(trail, tokens)
        return trail

    def match(self, trail: Trail) -> Sequence[int]:
        """Look up digests until one is missing."""
        pages: list[int] = []
        find = self._page_of.get
        for i in range(1, len(trail)):
            page = find(trail[i])
            if page is None:
                break
            pages.append(page)
        return pages

    def insert(
        self, trail: Trail, tokens: NDArray[np.int32], pages: NDArray[np.int32]
    ) -> Sequence[int]:
        """Map the digests that are not mapped yet.

        Every page is checked, not only those since the last call: a sequence that was preempted
        comes back with other pages for tokens inserted before.
        """
        self._extend(trail, tokens)
        taken: list[int] = []
        # Vectorized, as most pages of a growing sequence are mapped already.
        for i in np.flatnonzero(~self._is_mapped[pages]).tolist():
            digest = trail[i + 1]
            # Another page has this content; this one stays the sequence's own.
            if digest in self._page_of:
                continue
            page = int(pages[i])
            self._page_of[digest] = page
            self._digest_of[page] = digest
            self._is_mapped[page] = True
            taken.append(page)
        return taken

    def forget(self, page: int) -> None:
        """Remove a page."""
        digest = self._digest_of.pop(page, None)
        if digest is not None:
            del self._page_of[digest]
            self._is_mapped[page] = False

    def _extend(self, trail: Trail, tokens: NDArray[np.int32]) -> None:
        """Hash the full pages that the trail does not contain yet."""
        done = len(trail) - 1
        stride = self._page_size * _TOKEN_BYTES
        unhashed = tokens[done * self._page_size :].astype(np.int32, copy=False).tobytes()
        for start in range(0, len(unhashed) - stride + 1, stride):
            trail.append(self._digest(trail[-1] + unhashed[start : start + stride]))

    def _digest(self, data: bytes) -> bytes:
        return blake2b(data, digest_size=_DIGEST_BYTES, key=self._key).digest()
