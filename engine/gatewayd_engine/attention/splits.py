"""Whether contexts are split between multiprocessors. Imports no FlashInfer.

A step of few lines leaves most of a GPU idle unless each context is attended in parts at once and
the partial answers are merged (Flash-Decoding, Dao et al. 2023). From two programs for each
multiprocessor on the parts only cost memory traffic and a merge.
"""

from __future__ import annotations

from functools import cache

import torch

PROGRAMS_EACH = 2
"""Programs of attention that a multiprocessor runs at a time: FlashInfer's planner takes the same,
and splits nothing beyond."""


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; 1 for any other."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def fills(num_lines: int, num_kv_heads: int, multiprocessors: int) -> bool:
    """Whether lines keep a device busy with one program for each line and key head.

    ``fills(33, 8, 132)`` is False and ``fills(34, 8, 132)`` is True.
    """
    return num_lines * num_kv_heads > PROGRAMS_EACH * multiprocessors
