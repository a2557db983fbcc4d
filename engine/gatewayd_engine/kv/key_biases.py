"""Keys that stand for others in the pool, and their biases, which lie in pages as they do.

So biases are counted, swapped and given back with keys and values, and a pool has nothing more for
them. Such a page holds float32, layer by layer, whatever its records are.
"""

from __future__ import annotations

import torch

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix
from gatewayd_engine.kv.pool import KvPool
from gatewayd_hooks.kv_compression import Compacted

_BYTES = 4


def bias_pages(pool: KvPool, kept: int) -> int:
    """Pages that the biases of so many keys take, in all layers and heads."""
    return -(-kept // _places(pool))


def write_front(pool: KvPool, pages: list[int], kept: int, found: list[Compacted]) -> None:
    """Keep what stands for the first tokens of a sequence.

    Args:
        pool: where.
        pages: for the keys and values, then for their biases.
        kept: how many there are.
        found: they, by layer.
    """
    pool.arrivals.wait()
    end = kept // pool.page_size
    of_keys = torch.tensor(pages[:end])
    for layer, few in enumerate(found):
        for half, numbers in enumerate((few.keys, few.values)):
            tokens = numbers.transpose(0, 1).to(pool.dtype).contiguous()
            records = tokens if pool.codec is None else pool.codec.encode(tokens)
            pool.data[of_keys, layer, half] = torch.unflatten(records, 0, (end, -1))
        _write_biases(pool, pages[end:], layer, few.bias)


def _write_biases(pool: KvPool, pages: list[int], layer: int, bias: torch.Tensor) -> None:
    """Keep the biases of a layer, shape ``[kv_heads, kept]``, in as many pages as they take."""
    each, raw = _places(pool), _raw(pool)
    for page, part in zip(pages, torch.split(bias.float(), each, 1), strict=True):
        filled = torch.zeros(len(bias), each)
        filled[:, : part.shape[1]] = part
        own = filled.view(torch.uint8).flatten()
        raw[page, layer, : len(own)] = own


def read_biases(pool: KvPool, front: CompactedPrefix) -> torch.Tensor:
    """The biases of a front, of the pool's dtype, shape ``[layers, kv_heads, kept]``."""
    each, raw, heads = _places(pool), _raw(pool), pool.data.shape[4]
    own = raw[torch.tensor(front.bias), :, : heads * each * _BYTES].contiguous()
    by_page = own.view(torch.float32).view(len(front.bias), -1, heads, each)
    return by_page.permute(1, 2, 0, 3).flatten(2)[..., : front.kept].to(pool.dtype)


def _places(pool: KvPool) -> int:
    """Keys whose biases one page holds."""
    _, _, halves, size, _, last = pool.data.shape
    return halves * size * last * pool.data.itemsize // _BYTES


def _raw(pool: KvPool) -> torch.Tensor:
    """The pool's bytes, shape ``[pages, layers, bytes]``."""
    num_pages, num_layers = pool.data.shape[:2]
    return pool.data.view(torch.uint8).view(num_pages, num_layers, -1)
