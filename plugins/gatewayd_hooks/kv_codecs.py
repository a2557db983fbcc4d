"""KV codecs: the storage format of keys and values in the KV pool.

Each token has a record of bytes for its key, and one for its value, in each layer and head.
Everything that moves pages moves records unchanged: copy-on-write, swapping, KV tiers, handovers.
Attention reads decoded values, also of the tokens computed in the same step: the values do not
depend on when they were written, so a chunked prompt, a cached one and draft tokens give the same
answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import torch

    from gatewayd_hooks.resources import EngineResources


class KvCodecStrategy(Strategy, Protocol):
    """Encodes keys and values to records, and decodes them.

    A record depends on the numbers of its own token and head alone, and equal numbers give equal
    bytes. Finite numbers decode to finite ones; others may decode to anything. A record of zero
    bytes decodes to zeros: a pool is initialized with them, and failed records are overwritten with
    them. A tensor is contiguous in its last dimension; its other dimensions may be strided. Records
    with an even number of bytes start at even addresses, and so may be viewed as 16-bit numbers
    (``records.view(torch.bfloat16)``).

    It is called in every step, once to encode and at least once to decode in each layer, and is
    tried once before serving: what it raises then is reported, and the engine does not start. What
    it raises later ends the engine, because the pool is in its format and no default can read that;
    the next engine starts without it. It cannot be replaced while an engine runs.
    """

    def open(self, resources: EngineResources) -> None:
        """Read ``folder`` and ``device``."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """Return the bytes of a record; called before ``open``, to size the KV pool.

        Args:
            head_dim: elements of a key, and of a value.
            dtype: their type, that of the engine.

        Raises:
            ValueError: it cannot encode these; the message is one sentence that says what it can.
        """

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Encode keys and values into records.

        Args:
            values: shape ``[n, heads, head_dim]``, float32 or bfloat16; unchanged.
            out: overwritten completely, uint8, shape ``[n, heads, record_bytes]``.
        """

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """Decode records into numbers.

        Args:
            records: uint8, shape ``[..., record_bytes]``; unchanged.
            out: overwritten completely, float32 or bfloat16, shape ``[..., head_dim]``.
        """


@runtime_checkable
class PlainRecords(Protocol):
    """Optional part of a codec whose records are low-bit floats, which GPU kernels can read."""

    def element(self, dtype: torch.dtype) -> torch.dtype | None:
        """Return the float type of which a record has ``head_dim`` elements.

        Args:
            dtype: the engine's compute type.

        Returns:
            An 8-bit type; numbers beyond its range saturate. None for records in another format,
            which only a CPU can serve.
        """
