"""Log-probabilities: torch reference equals the CPU's, kernel equals the reference."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.sampling.logprobs import report
from tests.engine.kernels import checks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("n", "vocab", "num_top"), [(0, 10, 2), (1, 1, 1), (5, 50, 0), (3, 4096 + 77, 20)]
)
def test_the_kernel_reports_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, vocab: int, num_top: int
) -> None:
    checks.logprobs(kernels, device, dtype, n, vocab, num_top)


def test_forbidden_tokens_weigh_nothing(kernels: Kernels, device: torch.device) -> None:
    logits = torch.full((2, 9000), -torch.inf, device=device)
    logits[:, 5] = torch.tensor([1.0, 300.0])
    logits[:, 8500] = torch.tensor([1.0, 300.0])
    tokens = torch.tensor([5, 6], device=device)
    chosen, rank, top, ids = kernels.logprobs(logits, tokens, 2)
    assert chosen.tolist() == pytest.approx([-0.6931472, -torch.inf], abs=1e-5)
    assert rank.tolist() == [1, 3]
    assert top.flatten().tolist() == pytest.approx([-0.6931472] * 4, abs=1e-5)
    assert sorted(ids[0].tolist()) == [5, 8500]


def test_the_twin_reports_as_a_cpu() -> None:
    logits = checks.random(6, 40, dtype=torch.float32, device=torch.device("cpu"), scale=3.0)
    tokens = torch.tensor([0, 3, 39, 7, 7, 20])
    chosen, rank, top, ids = checks.TWIN.logprobs(logits, tokens, 4)
    told = report(logits.log_softmax(-1), range(6), tokens.tolist(), [4] * 6)
    for i, line in enumerate(told):
        assert chosen[i].item() == pytest.approx(line.logprob, abs=1e-5)
        assert rank[i].item() == line.rank
        assert top[i].tolist() == pytest.approx(line.top_logprobs, abs=1e-5)
        assert ids[i].tolist() == line.top_tokens
