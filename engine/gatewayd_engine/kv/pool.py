"""The tensor that holds all keys and values, in pages.

Block-major: everything of one page lies together, so a page moves or is copied in one piece.
The last page is scratch: padded rows of a batch may write there.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from gatewayd_engine.kv.codec import Codec
from gatewayd_engine.kv.cuda_transfers import CudaArrivals
from gatewayd_engine.kv.host_transfers import HostTransfers
from gatewayd_engine.model.attention_shape import AttentionShape


class KvPool:
    """Keys and values, shape ``[num_pages + 1, layers, 2, page_size, kv_heads, head_dim]``.

    With a codec they are records of bytes: the last dimension is ``record_bytes``. Whoever moves
    pages or tokens, or blanks them, needs not know; whoever reads numbers decodes. On a device,
    whose kernels decode nothing, records are numbers of fewer bits.

    Attributes:
        data: the tensor, numbers of ``dtype`` or ``element``, or uint8.
        codec: gives the numbers of records; None where ``data`` has them.
        dtype: in which attention computes.
        head_dim: numbers of a key, and of a value.
        decoded_bytes: of a page's numbers, as attention reads them.
        arrivals: pages that are being copied into it, and out of it.
        num_pages: pages that sequences can use.
        page_size: tokens per page.
    """

    __slots__ = (
        "arrivals",
        "codec",
        "data",
        "decoded_bytes",
        "dtype",
        "head_dim",
        "num_pages",
        "page_size",
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
            last, kept = shape.head_dim, element or dtype
        else:
            last, kept = codec.record_bytes, torch.uint8
        page = (shape.num_layers, 2, page_size, shape.num_kv_heads, last)
        # Zeros, not empty: what a masked position holds must not be a NaN.
        self.data = zeros((num_pages + 1, *page), kept, torch.device(device))
        raw = self.data.view(torch.uint8).view(num_pages + 1, shape.num_layers, -1)
        self.arrivals: HostTransfers | CudaArrivals = (
            CudaArrivals(raw) if raw.is_cuda else HostTransfers(raw.numpy())
        )

    def copy_page(self, source: int, target: int) -> None:
        """Copy a whole page, all layers: the write of copy-on-write."""
        self.arrivals.wait()
        self.data[target].copy_(self.data[source])


def page_bytes(
    shape: AttentionShape, page_size: int, dtype: torch.dtype, record_bytes: int | None = None
) -> int:
    """Bytes of one page over all layers.

    Args:
        shape: the model's attention.
        page_size: tokens per page.
        dtype: of its numbers.
        record_bytes: what a codec takes for a key, or a value, of one head; None without one.
    """
    each = shape.head_dim * dtype.itemsize if record_bytes is None else record_bytes
    return shape.num_layers * 2 * shape.num_kv_heads * each * page_size


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take memory when they are first written to, on a CPU.

    torch fills them at once: a pool of a gigabyte would take a second and all its memory at the
    start. numpy leaves it to the system, which hands out zeroed pages when they are touched.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu":
        # Bytes: floats of 8 bits know few operations.
        return torch.zeros(size, dtype=torch.uint8, device=device).view(dtype).view(shape)
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)
