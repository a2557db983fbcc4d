"""The tensor that holds all keys and values, in pages.

Block-major: everything of one page lies together, so a page moves or is copied in one piece.
The last page is scratch: padded rows of a batch may write there.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.kv.arrivals import Arrivals
from gatewayd_engine.kv.cuda import CudaArrivals


class KvPool:
    """Keys and values, shape ``[num_pages + 1, layers, 2, page_size, kv_heads, head_dim]``.

    Attributes:
        data: the tensor.
        arrivals: pages that are being copied into it, and out of it.
        num_pages: pages that sequences can use.
        page_size: tokens per page.
    """

    __slots__ = ("arrivals", "data", "num_pages", "page_size")

    def __init__(
        self,
        shape: AttentionShape,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        page = (shape.num_layers, 2, page_size, shape.num_kv_heads, shape.head_dim)
        # Zeros, not empty: what a masked position holds must not be a NaN.
        self.data = zeros((num_pages + 1, *page), dtype, torch.device(device))
        raw = self.data.view(torch.uint8).view(num_pages + 1, shape.num_layers, -1)
        self.arrivals: Arrivals | CudaArrivals = (
            CudaArrivals(raw) if raw.is_cuda else Arrivals(raw.numpy())
        )

    def copy_page(self, source: int, target: int) -> None:
        """Copy a whole page, all layers: the write of copy-on-write."""
        self.arrivals.wait()
        self.data[target].copy_(self.data[source])


def page_bytes(shape: AttentionShape, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers."""
    per_token = shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim
    return per_token * page_size * dtype.itemsize


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take memory when they are first written to, on a CPU.

    torch fills them at once: a pool of a gigabyte would take a second and all its memory at the
    start. numpy leaves it to the system, which hands out zeroed pages when they are touched.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)
