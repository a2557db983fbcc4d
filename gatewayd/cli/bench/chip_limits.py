"""Hardware limits of each workload on other GPUs, scaled from the H200 by a roofline model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from gatewayd.cli.bench.chips import CHIPS, Chip
from gatewayd.cli.bench.h200 import Comparison, reference
from gatewayd.cli.bench.hardware_floor import (
    batch_seconds,
    keys_seconds,
    prompt_seconds,
    served_seconds,
    weights_seconds,
)
from gatewayd.cli.bench.offline.workloads import KEYS
from gatewayd.cli.bench.offline.workloads import WORKLOADS as OFFLINE
from gatewayd.cli.bench.served.workloads import WORKLOADS as SERVED


def least_seconds(chip: Chip, workload: str, figure: str) -> float:
    """Return the minimum time that a figure is proportional to, directly or inversely.

    Args:
        chip: the GPU.
        workload: name in the stored figures.
        figure: a key of ``h200.FIGURES``.
    """
    if workload not in SERVED:
        return batch_seconds(chip, *_lengths(workload))
    served = SERVED[workload]
    if figure.startswith("ttft"):
        return prompt_seconds(chip, served.input_tokens)
    in_flight = int(served.load.value)
    if figure.startswith("tpot"):
        # The mean over the decode steps: half of the answer is in the context.
        context = served.input_tokens + served.output_tokens / 2
        return weights_seconds(chip, in_flight) + keys_seconds(chip, in_flight * context)
    return served_seconds(chip, in_flight, served.input_tokens, served.output_tokens)


@cache
def _lengths(workload: str) -> tuple[list[int], list[int], int]:
    made = OFFLINE[KEYS[workload]](0)
    return [len(prompt) for prompt in made.prompts], made.output_lens, len(made.shared)


def on_chip(one: Comparison, name: str) -> Comparison:
    """Convert a comparison's limit to that of another GPU.

    Args:
        one: comparison with the limit of the H200.
        name: of the GPU, as reported by its driver; the limit is None if ``CHIPS`` lacks it.
    """
    there, here = reference().gpu, CHIPS.get(name)
    if one.limit is None or name == there:
        return one
    if here is None:
        return replace(one, limit=None)
    slower = least_seconds(here, one.workload, one.figure) / least_seconds(
        CHIPS[there], one.workload, one.figure
    )
    return replace(one, limit=one.limit * (slower if one.is_duration else 1 / slower))
