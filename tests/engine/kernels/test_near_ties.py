"""Near ties: filter boundaries and equal scores are told from wrong tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.sampling.torch_sampling import bits, gumbel, keys
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from tests.engine.kernels import checks
from tests.engine.kernels.near_ties import SCORE, SHARE, Filters, may_differ

# Weights 4, 2, 1, 1 of 8: three quarters are before the third.
LOGITS = torch.tensor([4.0, 2.0, 1.0, 1.0]).log()
OPEN = Filters(1.0, 0, 1.0, 0.0, 3)


class Another(TorchKernels):
    """Chooses another token for the first line, wherever tokens are written.

    Args:
        other: maps the token of the line to another.
    """

    def __init__(self, other: Callable[[int], int]) -> None:
        self._other = other

    def sample(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, best = super().sample(*given)
        tokens[0] = self._other(int(tokens[0]))
        if len(given) > 4:
            rows, last_tokens = given[1], given[5]
            last_tokens[int(rows[0])] = tokens[0]
        return tokens, best


def test_the_token_at_which_top_p_ends_may_be_kept_or_not() -> None:
    at = OPEN._replace(top_p=0.75)
    assert may_differ(LOGITS, at, 9, 2, 0)
    assert may_differ(LOGITS, at, 9, 1, 3)
    assert not may_differ(LOGITS, at, 9, 0, 1)
    assert may_differ(LOGITS, at._replace(top_p=0.75 + SHARE / 2), 9, 2, 0)
    assert not may_differ(LOGITS, at._replace(top_p=0.75 + 2 * SHARE), 9, 2, 0)


def test_the_share_counts_what_top_k_leaves() -> None:
    # Of the first two alone two thirds are before the second.
    assert may_differ(LOGITS, OPEN._replace(top_k=2, top_p=2 / 3), 9, 1, 0)
    assert not may_differ(LOGITS, OPEN._replace(top_k=2, top_p=0.5), 9, 1, 0)


def test_the_token_at_which_min_p_ends_may_be_kept_or_not() -> None:
    assert may_differ(LOGITS, OPEN._replace(min_p=0.25), 9, 2, 0)
    assert not may_differ(LOGITS, OPEN._replace(min_p=0.3), 9, 2, 0)


def test_tokens_that_score_alike_may_be_drawn_for_one_another() -> None:
    place = torch.tensor([9])
    noise = gumbel(bits(keys(torch.tensor([3]), place), torch.arange(4)))
    alike = LOGITS.clone()
    alike[1] = alike[0] + noise[0] - noise[1]
    assert may_differ(alike, OPEN, 9, 0, 1)
    alike[1] += 3 * SCORE
    assert not may_differ(alike, OPEN, 9, 0, 1)
    assert not may_differ(alike, OPEN._replace(temperature=0.0), 9, 0, 1)


def test_one_token_that_is_wrong_is_not_let_pass() -> None:
    wrong = Another(lambda token: (token + 1) % 50)
    with pytest.raises(AssertionError, match=r"Filters\(temperature"):
        checks.sample(wrong, torch.device("cpu"), torch.float32, 8, 50)


def test_one_token_at_an_edge_is_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.cat((LOGITS, torch.full((46,), -torch.inf))).expand(8, -1).contiguous()
    columns = checks.columns(torch.device("cpu"), 10, top_p=[0.75] * 10)
    monkeypatch.setattr(checks, "random", lambda *_, **__: logits)
    monkeypatch.setattr(checks, "mixed_columns", lambda *_: columns)

    checks.sample(Another(lambda token: 3), torch.device("cpu"), torch.float32, 8, 50)
