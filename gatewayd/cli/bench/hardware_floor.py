"""The least time that a GPU needs for a workload in the 8B shape: what must be read and multiplied.

A step reads the weights once, however many tokens it computes, and the keys and values of every
context; a prompt multiplies. Launches, sampling, the host and the network are not counted, so no
engine reaches it. Weights and keys are bfloat16.
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
    """Multiplying a prompt's layers, without those of its first ``cached`` tokens."""
    keys = (length * length - cached * cached) / 2
    products = 2 * _PARAMETERS * (length - cached) / chip.multiplied
    return products + _ATTENTION * keys / chip.attended


def weights_seconds(chip: Chip, lines: int) -> float:
    """Matrix products of a decode step: reading the weights, or multiplying where that is more."""
    return max(_WEIGHTS / chip.read, lines * _WEIGHTS / chip.multiplied)


def keys_seconds(chip: Chip, tokens: float) -> float:
    """Reading the keys and values of so many tokens in all."""
    return _TOKEN * tokens / chip.read


def batch_seconds(
    chip: Chip, prompts: Sequence[int], answers: Sequence[int], shared: int = 0
) -> float:
    """Requests that come at once.

    Args:
        chip: what computes.
        prompts: their lengths.
        answers: tokens of each answer; the first is the prompt's.
        shared: tokens that all prompts begin with, computed and read once.
    """
    first = prompt_seconds(chip, shared) if shared else 0.0
    # A step with few tokens of prompts still reads all weights.
    prefill = max(
        first + sum(prompt_seconds(chip, n, shared) for n in prompts), _WEIGHTS / chip.read
    )
    lines = min(len(prompts), _MOST_RUNNING)
    steps = math.ceil(max(max(answers) - 1, sum(n - 1 for n in answers) / lines))
    own = sum(
        (n - 1) * (prompt - shared) + n * (n - 1) / 2
        for prompt, n in zip(prompts, answers, strict=True)
    )
    mean = sum(n - 1 for n in answers) / steps if steps else 0.0
    decode = steps * weights_seconds(chip, max(1, math.ceil(mean)))
    return prefill + decode + keys_seconds(chip, own + steps * shared)


def served_seconds(chip: Chip, in_flight: int, prompt: int, answer: int) -> float:
    """A round of requests that are always so many: each prompt between steps of the others."""
    contexts = in_flight * (prompt + answer / 2)
    step = weights_seconds(chip, in_flight) + keys_seconds(chip, contexts)
    return in_flight * prompt_seconds(chip, prompt) + (answer - 1) * step
