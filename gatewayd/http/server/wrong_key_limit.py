"""A brake on wrong API keys, for each address that they come from.

It never stands before a key is looked at: a right one passes, whoever else is behind its address.
So it says nothing to a guesser but when to come again; of 256 random bits nobody guesses any.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from gatewayd.http.server.client_address import subscriber

FREE = 10
"""Wrong keys that are just wrong."""
_LONGEST = 300.0
_FORGET_SECONDS = 900.0
_MOST_PEERS = 4096


class _Record(NamedTuple):
    """Of an address: how many wrong keys, until when it is braked, when the last one came."""

    strikes: int
    until: float
    last: float


class Brake:
    """Remembers who sent wrong keys; a fixed number of addresses.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        """Addresses that are remembered."""
        return len(self._records)

    def wrong(self, address: str | None) -> float:
        """A wrong key has come.

        Each one beyond the first ``FREE`` doubles the time, but for those within it.

        Args:
            address: that it came from; None where there are no addresses.

        Returns:
            Seconds for which wrong keys from there are braked; 0 if they are not.
        """
        name, now = subscriber(address or ""), self._clock()
        record = self._records.pop(name, None)
        if record is None or now - max(record.last, record.until) > _FORGET_SECONDS:
            record = _Record(0, 0.0, now)
        if now >= record.until:
            strikes = record.strikes + 1
            over = strikes - FREE
            seconds = min(_LONGEST, 2.0 ** min(over - 1, 16)) if over > 0 else 0.0
            record = _Record(strikes, now + seconds, now)
        self._records[name] = record._replace(last=now)
        if len(self._records) > _MOST_PEERS:
            self._records.popitem(last=False)
        return max(0.0, record.until - now)
