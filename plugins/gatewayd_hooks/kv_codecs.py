"""KV codecs: the form in which keys and values lie in the pool.

Each token has a record of bytes for its key, and one for its value, in each layer and head. All
that moves pages moves records as they are: copies on write, swaps, KV tiers, handovers. Attention
sees what was decoded, also of the tokens that a step computes itself: what is read does not depend
on when it was written, so a chunked prompt, a cached one and a guessed token give the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import torch

    from gatewayd_hooks.resources import EngineResources


class KvCodecStrategy(Strategy, Protocol):
    """Encodes keys and values to records, and decodes them.

    A record follows from the numbers of its own token and head alone, and equal numbers give equal
    bytes. Finite numbers are decoded to finite ones; others may become any. A record of zero bytes
    is decoded to zeros: a pool begins with them, and what failed is overwritten with them. Numbers
    of a tensor's last dimension lie side by side; between its records, or keys, or values, there
    may be gaps. Records of an even number of bytes begin at even bytes, and so may be looked at as
    numbers of two (``records.view(torch.bfloat16)``).

    It is called in every step, once to encode and at least once to decode in each layer, and tried
    once before: what it raises then is told, and nothing is served. What it raises later ends the
    engine, for the pool is in its form and no default can read that; the next one starts without
    it. It is fixed while an engine runs.
    """

    def open(self, resources: EngineResources) -> None:
        """Learn ``folder`` and ``device``."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of a record; asked before ``open``, as the number of pages follows from it.

        Args:
            head_dim: numbers of a key, and of a value.
            dtype: their type, that of the engine.

        Raises:
            ValueError: it cannot encode these; one sentence that says what it can.
        """

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Write the records of keys and values.

        Args:
            values: shape ``[n, heads, head_dim]``, float32 or bfloat16; unchanged.
            out: all of it is written, uint8, shape ``[n, heads, record_bytes]``.
        """

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """Write the numbers of records.

        Args:
            records: uint8, shape ``[..., record_bytes]``; unchanged.
            out: all of it is written, float32 or bfloat16, shape ``[..., head_dim]``.
        """


@runtime_checkable
class PlainRecords(Protocol):
    """A codec whose records may be plain numbers of fewer bits: a GPU's kernels read those."""

    def element(self, dtype: torch.dtype) -> torch.dtype | None:
        """The type of float whose ``head_dim`` numbers a record is.

        Args:
            dtype: the type of the engine's numbers.

        Returns:
            One of 8 bits; a number beyond its largest has become that. None for records that are
            something else, which only a CPU can serve.
        """
