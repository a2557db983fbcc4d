"""The KV pool: one tensor of all keys and values, in pages.

Block-major: all layers of one page are contiguous, so a page is moved or copied in one piece.
The last page is scratch: padded batch rows may write there. A model whose values are its keys, such
as one with latent attention, has one part per token and head instead of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from gatewayd_engine.kv.codec import Codec
from gatewayd_engine.kv.cuda_transfers import CudaTransfers
from gatewayd_engine.kv.host_transfers import HostTransfers
from gatewayd_engine.model.attention_shape import AttentionShape


class KvPool:
    """Keys and values, shape ``[num_pages + 1, layers, parts, page_size, kv_heads, head_dim]``.

    Parts are keys and values, or keys alone; see ``AttentionShape``. With a codec they are byte
    records: the last dimension is ``record_bytes``. Code that moves or zeroes pages or tokens does
    not depend on it; code that reads numbers decodes. On a device, whose kernels do not decode,
    records are low-bit numbers.

    Attributes:
        data: the tensor, numbers of ``dtype`` or ``element``, or uint8.
        codec: decodes records to numbers; None where ``data`` holds numbers.
        dtype: data type of the attention computation.
        head_dim: numbers of a key, and of a value.
        decoded_bytes: size of a page once decoded for attention.
        transfers: copies of pages into the pool, and out of it.
        settle: called before pages are copied or zeroed: a step that still computes may write to
            them. On a device a stream orders the two.
        num_pages: pages that sequences can use.
        page_size: tokens per page.
    """

    __slots__ = (
        "codec",
        "data",
        "decoded_bytes",
        "dtype",
        "head_dim",
        "num_pages",
        "page_size",
        "settle",
        "transfers",
    )

    def __init__(
        self,
        shape: AttentionShape,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
        codec: Codec | None = None,
        element: torch.dtype | None = None,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.codec = codec
        self.dtype = dtype
        self.head_dim = shape.head_dim
        self.decoded_bytes = page_bytes(shape, page_size, dtype)
        if codec is None:
            last, stored = shape.head_dim, element or dtype
        else:
            last, stored = codec.record_bytes, torch.uint8
        page = (shape.num_layers, shape.num_parts, page_size, shape.num_kv_heads, last)
        self.settle: Callable[[], None] = lambda: None
        # Zeros, not uninitialised memory: masked positions must not contain NaN.
        self.data = zeros((num_pages + 1, *page), stored, torch.device(device))
        raw = self.data.view(torch.uint8).view(num_pages + 1, shape.num_layers, -1)
        self.transfers: HostTransfers | CudaTransfers = (
            CudaTransfers(raw) if raw.is_cuda else HostTransfers(raw.numpy())
        )

    def copy_page(self, source: int, target: int) -> None:
        """Copy a whole page, all layers, for copy-on-write."""
        # The source may still be the target of a pending copy.
        self.transfers.wait()
        self.settle()
        self.data[target].copy_(self.data[source])

    def zero_page(self, page: int) -> None:
        """Zero a whole page, all layers."""
        self.settle()
        # As bytes, because 8-bit floats support few operations.
        self.data[page].view(torch.uint8).zero_()


def page_bytes(
    shape: AttentionShape, page_size: int, dtype: torch.dtype, record_bytes: int | None = None
) -> int:
    """Return the bytes of one page over all layers.

    Args:
        shape: the model's attention.
        page_size: tokens per page.
        dtype: data type of its numbers.
        record_bytes: size of a key, or a value, of one head with a codec; None without one.
    """
    each = shape.head_dim * dtype.itemsize if record_bytes is None else record_bytes
    return shape.num_layers * shape.num_parts * shape.num_kv_heads * each * page_size


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Create a zeroed tensor; on a CPU, memory is committed when it is first written to.

    torch writes zeros at once: a pool of a gigabyte would take a second and all its memory at the
    start. numpy uses pages that the operating system zeroes on first access.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu":
        # As bytes, because 8-bit floats support few operations.
        return torch.zeros(size, dtype=torch.uint8, device=device).view(dtype).view(shape)
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)
