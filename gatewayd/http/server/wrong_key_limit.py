"""Rate limit on invalid API keys, per client address.

It applies only after a key has been checked, so that a valid key is accepted regardless of other
clients at its address. An attacker only learns when to retry; keys of 256 random bits cannot be
guessed anyway.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from gatewayd.http.server.client_address import subscriber

FREE = 10
"""Invalid keys per address before the limit applies."""
_LONGEST = 300.0
_EXPIRY_SECONDS = 900.0
_MOST_PEERS = 4096


class _Record(NamedTuple):
    """Record of an address: number of invalid keys, end of the block, time of the last key."""

    strikes: int
    until: float
    last: float


class WrongKeyLimiter:
    """Exponential backoff for addresses that send invalid keys, for a bounded number of addresses.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of recorded addresses."""
        return len(self._records)

    def record_wrong_key(self, address: str | None) -> float:
        """Record an invalid key.

        Each one beyond the first ``FREE`` doubles the block, except those sent during a block.

        Args:
            address: of the client; None if the transport has no addresses.

        Returns:
            Remaining seconds of the address's block; 0 if it is not blocked.
        """
        name, now = subscriber(address or ""), self._clock()
        # Inserted again below, so that the first record is the one unused for longest.
        record = self._records.pop(name, None)
        if record is None or now - max(record.last, record.until) > _EXPIRY_SECONDS:
            record = _Record(0, 0.0, now)
        if now >= record.until:
            strikes = record.strikes + 1
            over = strikes - FREE
            # The exponent is bounded, as the power would overflow.
            seconds = min(_LONGEST, 2.0 ** min(over - 1, 16)) if over > 0 else 0.0
            record = _Record(strikes, now + seconds, now)
        self._records[name] = record._replace(last=now)
        # Bounds the memory: one client may have many addresses.
        if len(self._records) > _MOST_PEERS:
            self._records.popitem(last=False)
        return max(0.0, record.until - now)
