"""Penalties: torch reference equals the logits processor, kernel equals the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_hooks.resources import PenaltyColumns
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_logits_penalties.strategy import Penalties
from tests.engine.kernels import checks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "vocab"), [(0, 5), (1, 5), (5, 2048 + 33)])
def test_the_kernel_penalises_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, vocab: int
) -> None:
    checks.penalise(kernels, device, dtype, n, vocab)


def test_the_twin_penalises_as_the_strategy() -> None:
    vocab, asked = 64, [(1.3, 0.0, 0.0), (1.0, 0.5, -0.2), (1.0, 0.0, 0.0), (0.7, -0.1, 0.9)]
    generator = np.random.default_rng(1)
    strategy = Penalties()
    strategy.open(engine_resources(vocab_size=vocab))
    seen = torch.zeros(4, vocab, dtype=torch.bool)
    counts = torch.zeros(4, vocab, dtype=torch.int32)
    for row, (factor, each, once) in enumerate(asked):
        params = SamplingParams(
            max_tokens=1,
            repetition_penalty=factor,
            frequency_penalty=each,
            presence_penalty=once,
        )
        prompt, output = generator.integers(0, vocab, (2, 40), np.int32)
        strategy.admit(row, params, prompt, output)
        seen[row, np.concatenate((prompt, output))] = True
        counts[row] = torch.from_numpy(np.bincount(output, minlength=vocab))
    repetition, frequency, presence = torch.tensor(asked).unbind(1)
    index = torch.arange(4)
    columns = PenaltyColumns(
        seen=seen,
        seen_line=torch.where(repetition != 1.0, index, -1),
        counts=counts,
        count_line=torch.where((frequency != 0.0) | (presence != 0.0), index, -1),
        repetition=repetition,
        frequency=frequency,
        presence=presence,
    )
    lines, rows = torch.tensor([5, 0, 2, 3]), torch.tensor([3, 2, 0, 1])
    logits = checks.random(6, vocab, dtype=torch.float32, device=torch.device("cpu"), scale=3.0)
    expected = logits.clone()
    strategy.apply(expected, lines, rows)
    checks.TWIN.penalise(logits, lines, rows, columns)
    checks.close(logits, expected)


def test_tables_may_be_empty(kernels: Kernels, device: torch.device) -> None:
    nobody = torch.full((3,), -1, device=device)
    some = torch.ones(3, device=device)
    empty = torch.empty(0, 50, device=device)
    columns = PenaltyColumns(empty.bool(), nobody, empty.int(), nobody, some, some, some)
    logits = torch.ones(2, 50, device=device)
    rows = torch.arange(2, device=device)
    kernels.penalise(logits, rows, rows, columns)
    assert (logits == 1.0).all()
