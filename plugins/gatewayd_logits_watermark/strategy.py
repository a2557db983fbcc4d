"""Watermark: raises the logits of green tokens, for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gatewayd_hooks.logits import RequestRefused
from gatewayd_logits_watermark.answer_statistics import EAGERNESS, AnswerStatistics
from gatewayd_logits_watermark.green import Hasher, numbers_of, split, threshold
from gatewayd_logits_watermark.keys import keys_of, names_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.logits import SamplingView
    from gatewayd_hooks.resources import EngineResources
    from gatewayd_logits_watermark.config import WatermarkConfig

_BLOCK = 1 << 17
"""Number of logits changed at a time, so that temporaries fit in a core's cache."""

PARAMETER: Final = "watermark"
"""Name in a request's ``extra_args``."""


class Watermark:
    """Kirchenbauer et al. 2023, algorithm 2: the soft red list.

    See ``answer_statistics`` for what is added.

    Lists are determined by hashes of the preceding tokens, computed on the host.

    Args:
        config: of the watermark.
    """

    reads_tokens = True

    def __init__(self, config: WatermarkConfig) -> None:
        self._config = config
        self._key_of = keys_of(config)
        self._threshold = threshold(config.gamma)
        self._statistics: dict[int, AnswerStatistics] = {}

    def open(self, resources: EngineResources) -> None:
        """Allocate the state of each row, and number the vocabulary."""
        rows, vocab = resources.max_running, resources.vocab_size
        self._device = device = torch.device(resources.device)
        self._multiplier = np.zeros(rows, np.int32)
        self._addend = np.zeros(rows, np.int32)
        self._delta = np.zeros(rows, np.float32)
        self._spent: list[Sequence[int]] = [()] * rows
        numbers = numbers_of(np.arange(vocab))
        self._number_of: list[int] = numbers.tolist()
        self._numbers = torch.from_numpy(numbers).to(device)
        lines = max(1, _BLOCK // vocab)
        self._chosen = torch.empty((lines, vocab), dtype=torch.int32, device=device)
        self._bonus = torch.empty((lines, vocab), dtype=torch.float32, device=device)
        self._zero = torch.zeros((), dtype=torch.int32, device=device)

    def close(self) -> None:
        """Discard the keys."""
        self._statistics.clear()

    def admit(
        self, row: int, params: SamplingView, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """Accept requests according to ``requests`` and to their own parameter.

        Raises:
            RequestRefused: the parameter is no boolean, or not allowed.
        """
        if not self._wants(params.extra.get(PARAMETER)):
            return False
        config = self._config
        before = prompt[-config.context :].tolist()
        context = [-1] * (config.context - len(before)) + before
        hasher = Hasher(self._key_of(names_of(params.tenant)[0]))
        statistics = self._statistics[row] = AnswerStatistics(
            hasher, context, config.gamma, self._number_of
        )
        # A preempted sequence comes back with its answer so far.
        for token in output.tolist():
            statistics.advance(token)
        self._choose([row], [statistics])
        return True

    def _wants(self, wish: object) -> bool:
        requests = self._config.requests
        if wish is None:
            return requests != "opt_in"
        if not isinstance(wish, bool):
            raise RequestRefused(f"extra_args.{PARAMETER} is {wish!r}; it must be true or false")
        if requests == "all" and not wish:
            raise RequestRefused(f"extra_args.{PARAMETER} is false; this server marks every answer")
        return wish

    def remove(self, row: int) -> None:
        """Discard the row's state."""
        del self._statistics[row]

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Advance the lists by these tokens."""
        places = rows.tolist()
        all_statistics = [self._statistics[row] for row in places]
        for statistics, token in zip(all_statistics, tokens.tolist(), strict=True):
            statistics.advance(token)
        self._choose(places, all_statistics)

    def _choose(self, rows: list[int], all_statistics: list[AnswerStatistics]) -> None:
        """Set the lists and addends of the next tokens."""
        digests = b"".join([statistics.digest for statistics in all_statistics])
        self._multiplier[rows], self._addend[rows] = split(digests)
        least, most = self._config.delta, self._config.max_delta
        missing = [statistics.missing for statistics in all_statistics]
        self._delta[rows] = [min(most, least + EAGERNESS * each) for each in missing]
        for row, each, statistics in zip(rows, missing, all_statistics, strict=True):
            # Otherwise a repetitive answer would be kept repeating.
            self._spent[row] = statistics.seen if each and most > least else ()

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Raise green logits, in place; masked tokens stay masked."""
        places = rows.numpy()
        bits = self._delta[places].view(np.int32)
        lines = index.numpy().astype(np.int32)
        columns = np.stack([self._multiplier[places], self._addend[places], bits, lines])
        # In one transfer, and without synchronizing with a GPU.
        sent = torch.from_numpy(columns).to(self._device, non_blocking=True).unsqueeze(-1)
        multiplier, addend, delta_bits, line_of = sent.unbind()
        delta, index = delta_bits.view(torch.float32), line_of.squeeze(-1).long()
        for start in range(0, len(places), len(self._chosen)):
            end = min(start + len(self._chosen), len(places))
            chosen, bonus = self._chosen[: end - start], self._bonus[: end - start]
            torch.mul(multiplier[start:end], self._numbers, out=chosen)
            # Operations within one type are several times as fast as mixed ones.
            chosen.add_(addend[start:end]).lt_(self._threshold)
            spent = [
                (line, token)
                for line, row in enumerate(places[start:end].tolist())
                for token in self._spent[row]
            ]
            if spent:
                at = torch.tensor(spent).T.to(self._device, non_blocking=True)
                chosen.index_put_((at[0], at[1]), self._zero)
            logits.index_add_(0, index[start:end], bonus.copy_(chosen).mul_(delta[start:end]))
