"""Content keys of KV pages: a chain of digests over salt and tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property

from gatewayd_engine.state.sequence import Sequence
from gatewayd_hooks.kv_tiers import KEY_BYTES


class PageKeys:
    """Keys of sequences' pages; equal keys mean bit-identical KV.

    Args:
        identify: returns a 32-byte fingerprint of engines that compute bit-identical KV.
        page_size: tokens per page.
    """

    def __init__(self, identify: Callable[[], bytes], page_size: int) -> None:
        self._identify = identify
        self._page_size = page_size

    @cached_property
    def _identity(self) -> bytes:
        # On first use, because it reads samples of the weights' files.
        return self._identify()

    def keys(self, sequence: Sequence, num_pages: int) -> list[bytes]:
        """Return the keys of a sequence's first full pages, shape ``[num_pages]``.

        They do not depend on the prefix cache, and are computed once for each page.
        """
        # A key depends on the tokens up to its page, which never change while a sequence grows.
        keys, size = sequence.tier_keys, self._page_size
        if len(keys) < num_pages:
            last = keys[-1] if keys else self._digest(b"salt" + sequence.salt)
            for i in range(len(keys), num_pages):
                last = self._digest(last + sequence.tokens[i * size : (i + 1) * size].tobytes())
                keys.append(last)
        return keys[:num_pages]

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=KEY_BYTES, key=self._identity).digest()
