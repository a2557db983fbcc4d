"""Storage of compacted prefixes in the pool; the biases of their keys are stored in pages, too.

So biases are accounted for, swapped and released like keys and values, and need no other memory.
A page of biases holds float32, layer by layer, whatever the pool's data type is.
"""

from __future__ import annotations

import torch

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix
from gatewayd_engine.kv.pool import KvPool
from gatewayd_hooks.kv_compression import Compacted

_BYTES = 4


def bias_pages(pool: KvPool, kept: int) -> int:
    """Return the pages taken by the biases of ``kept`` keys, in all layers and heads."""
    return -(-kept // _keys_per_page(pool))


def write_front(pool: KvPool, pages: list[int], kept: int, found: list[Compacted]) -> None:
    """Write a compacted prefix to the pool.

    Args:
        pool: the KV pool.
        pages: pages for the keys and values, then for their biases.
        kept: number of compacted keys.
        found: the compacted keys and values, by layer.
    """
    pool.transfers.wait()
    end = kept // pool.page_size
    of_keys = torch.tensor(pages[:end])
    for layer, compacted in enumerate(found):
        for half, numbers in enumerate((compacted.keys, compacted.values)):
            tokens = numbers.transpose(0, 1).to(pool.dtype).contiguous()
            records = tokens if pool.codec is None else pool.codec.encode(tokens)
            # ``[kept, kv_heads, last]`` in pages of ``[page_size, kv_heads, last]``.
            pool.data[of_keys, layer, half] = torch.unflatten(records, 0, (end, -1))
        _write_biases(pool, pages[end:], layer, compacted.bias)


def _write_biases(pool: KvPool, pages: list[int], layer: int, bias: torch.Tensor) -> None:
    """Write the biases of a layer, shape ``[kv_heads, kept]``, to their pages."""
    each, raw = _keys_per_page(pool), _raw(pool)
    for page, part in zip(pages, torch.split(bias.float(), each, 1), strict=True):
        # Whole heads of ``each`` biases, so that a page is read back as ``[kv_heads, each]``.
        filled = torch.zeros(len(bias), each)
        filled[:, : part.shape[1]] = part
        own = filled.view(torch.uint8).flatten()
        raw[page, layer, : len(own)] = own


def read_biases(pool: KvPool, front: CompactedPrefix) -> torch.Tensor:
    """Read the biases of a prefix, in the pool's dtype, shape ``[layers, kv_heads, kept]``."""
    each, raw, heads = _keys_per_page(pool), _raw(pool), pool.data.shape[4]
    own = raw[torch.tensor(front.bias), :, : heads * each * _BYTES].contiguous()
    by_page = own.view(torch.float32).view(len(front.bias), -1, heads, each)
    return by_page.permute(1, 2, 0, 3).flatten(2)[..., : front.kept].to(pool.dtype)


def _keys_per_page(pool: KvPool) -> int:
    """Return the number of keys whose biases fit in one page."""
    _, _, halves, size, _, last = pool.data.shape
    # The bytes of one head in one layer of a page, keys and values together.
    return halves * size * last * pool.data.itemsize // _BYTES


def _raw(pool: KvPool) -> torch.Tensor:
    """Return the pool's bytes, shape ``[pages, layers, bytes]``."""
    num_pages, num_layers = pool.data.shape[:2]
    return pool.data.view(torch.uint8).view(num_pages, num_layers, -1)
