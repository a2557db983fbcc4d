"""Roofline model: the minimum time of a workload on a GPU, for the shape of Llama 3.1 8B.

A step reads the weights once, however many tokens it computes, and the KV cache of every context;
prefill is bound by matrix products. Launches, sampling, the host and the network are not counted,
so no engine reaches the limit. Weights and KV cache are bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gatewayd.cli.bench.chips import Chip

_PARAMETERS = 6.98e9  # of the layers
_HEAD = 0.525e9  # and of the head, which prompts need for their last token alone
_WEIGHTS = 2 * (_PARAMETERS + _HEAD)  # bytes
_TOKEN = 128 * 1024  # bytes: keys and values of a token
_ATTENTION = 4 * 4096 * 32  # operations of a query and a key: heads x their size, layers
_MOST_RUNNING = 512


def prompt_seconds(chip: Chip, length: int, cached: int = 0) -> float:
    """Return the time to prefill a prompt, except for its first ``cached`` tokens."""
    # Causal attention: a token attends to itself and all tokens before it.
    keys = (length * length - cached * cached) / 2
    products = 2 * _PARAMETERS * (length - cached) / chip.multiplied
    return products + _ATTENTION * keys / chip.attended


def weights_seconds(chip: Chip, lines: int) -> float:
    """Return the time of a decode step's matrix products, bound by bandwidth or by compute."""
    # Two bytes and two operations for each parameter (and row): one number serves for both.
    return max(_WEIGHTS / chip.read, lines * _WEIGHTS / chip.multiplied)


def keys_seconds(chip: Chip, tokens: float) -> float:
    """Return the time to read the KV cache of ``tokens`` tokens in total."""
    return _TOKEN * tokens / chip.read


def batch_seconds(
    chip: Chip, prompts: Sequence[int], answers: Sequence[int], shared: int = 0
) -> float:
    """Return the time of requests that are submitted at once.

    Args:
        chip: the GPU.
        prompts: prompt lengths.
        answers: tokens of each answer; the first of them comes from the prefill.
        shared: length of a prefix that all prompts share, computed and read once.
    """
    first = prompt_seconds(chip, shared) if shared else 0.0
    # A step with few prompt tokens still reads all weights.
    prefill = max(
        first + sum(prompt_seconds(chip, n, shared) for n in prompts), _WEIGHTS / chip.read
    )
    lines = min(len(prompts), _MOST_RUNNING)
    # As many as the longest answer needs, or all answers with the batch at its maximum.
    steps = math.ceil(max(max(answers) - 1, sum(n - 1 for n in answers) / lines))
    # In decode step i a sequence reads its own prompt and i generated tokens.
    own = sum(
        (n - 1) * (prompt - shared) + n * (n - 1) / 2
        for prompt, n in zip(prompts, answers, strict=True)
    )
    mean = sum(n - 1 for n in answers) / steps if steps else 0.0
    decode = steps * weights_seconds(chip, max(1, math.ceil(mean)))
    # The shared prefix is read once per step, for all sequences.
    return prefill + decode + keys_seconds(chip, own + steps * shared)


def served_seconds(chip: Chip, in_flight: int, prompt: int, answer: int) -> float:
    """Return the time of ``in_flight`` concurrent requests, with prefills between decode steps."""
    contexts = in_flight * (prompt + answer / 2)
    step = weights_seconds(chip, in_flight) + keys_seconds(chip, contexts)
    return in_flight * prompt_seconds(chip, prompt) + (answer - 1) * step
