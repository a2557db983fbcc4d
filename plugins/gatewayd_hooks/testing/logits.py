"""Conformance tests of logits processors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_hooks.logits import LogitsProcessor, RequestRefused, SamplingView
from gatewayd_hooks.testing.fakes import engine_resources

_VOCAB = 48
_ROWS = 6
# Some tokens are repeated, and some occur in both, for penalties.
_PROMPT = (5, 6, 5, 7, 30)
_OUTPUT = (9, 5, 9, 12)
_STRANGE = (True, False, -1, 0, 2**63 - 1, -1e300, 1e300, "", "no such thing")


@dataclass
class Sampling:
    """Sampling parameters of a request, each at its neutral value."""

    temperature: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    logit_bias: list[tuple[int, float]] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    tenant: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def _ids(tokens: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def _logits(lines: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((lines, _VOCAB), generator=torch.Generator().manual_seed(seed)) * 4


class LogitsProcessorConformance:
    """Subclass it, build your processor in ``make`` and return relevant ``requests``."""

    def make(self) -> LogitsProcessor:
        """Build the processor; the tests open and close it."""
        raise NotImplementedError("return your logits processor, built and not opened")

    def requests(self) -> Sequence[SamplingView]:
        """Return requests that the processor acts on; by default those with standard parameters."""
        return (
            Sampling(frequency_penalty=0.7, presence_penalty=-0.4),
            Sampling(repetition_penalty=1.3),
            Sampling(repetition_penalty=0.8, presence_penalty=1.0),
            Sampling(logit_bias=[(3, 2.5), (40, -100.0)]),
            Sampling(min_tokens=6, stop_token_ids=[11, 12]),
            Sampling(min_tokens=2),
        )

    @contextmanager
    def opened(self) -> Iterator[LogitsProcessor]:
        """Yield an opened processor."""
        processor = self.make()
        try:
            processor.open(engine_resources(vocab_size=_VOCAB, max_running=_ROWS))
            yield processor
        finally:
            processor.close()

    def admitted(self, processor: LogitsProcessor, output: Sequence[int] = ()) -> list[int]:
        """Admit each request in the row of its index; return the rows that the processor wants."""
        rows = [
            row
            for row, params in enumerate(self.requests()[:_ROWS])
            if processor.admit(row, params, _ids(_PROMPT), _ids(output))
        ]
        if not rows:
            pytest.fail("requests() must return some that your processor acts on")
        return rows

    @staticmethod
    def apply(
        processor: LogitsProcessor, logits: torch.Tensor, index: list[int], rows: list[int]
    ) -> torch.Tensor:
        """Apply the processor to rows of a copy."""
        changed = logits.clone()
        processor.apply(changed, torch.tensor(index), torch.tensor(rows))
        return changed

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_requests_without_the_option_are_not_processed(self) -> None:
        """It need not be declined, but a declined row must not be touched either."""
        with self.opened() as processor:
            if processor.admit(0, Sampling(), _ids(_PROMPT), _ids(())):
                processor.remove(0)

    def test_an_invalid_value_is_refused_as_a_client_error(self) -> None:
        """Any other exception would count as a fault of the processor."""
        with self.opened() as processor:
            for params in self.requests():
                for name, value in ((name, value) for name in params.extra for value in _STRANGE):
                    strange = Sampling(extra={**params.extra, name: value})
                    try:
                        if processor.admit(0, strange, _ids(_PROMPT), _ids(())):
                            processor.remove(0)
                    except RequestRefused:
                        continue
                    except Exception as error:  # noqa: BLE001 - it may raise anything
                        pytest.fail(
                            f"extra_args.{name} {value!r}: raise RequestRefused, not {error!r}"
                        )

    def test_logits_change_for_requests_with_the_option(self) -> None:
        with self.opened() as processor:
            rows = self.admitted(processor)
            logits = _logits(len(rows))
            for row in rows:
                processor.append(torch.tensor([row]), torch.tensor([5]))
            changed = self.apply(processor, logits, list(range(len(rows))), rows)
            assert not torch.equal(changed, logits)
            assert not changed.isnan().any()

    def test_only_the_given_rows_change(self) -> None:
        with self.opened() as processor:
            rows = self.admitted(processor, _OUTPUT[:1])
            logits = _logits(2 * len(rows) + 1)
            index = [2 * i + 1 for i in range(len(rows))]
            changed = self.apply(processor, logits, index, rows)
            untouched = [line for line in range(len(logits)) if line not in index]
            assert torch.equal(changed[untouched], logits[untouched])

    def test_results_of_a_row_do_not_depend_on_the_batch(self) -> None:
        with self.opened() as processor:
            rows = self.admitted(processor, _OUTPUT[:1])
            logits = _logits(1).repeat(len(rows), 1)
            lines = list(range(len(rows)))
            together = self.apply(processor, logits, lines, rows)
            backward = self.apply(processor, logits, lines, rows[::-1])
            assert torch.equal(together, backward.flip(0))
            for line, row in enumerate(rows):
                alone = self.apply(processor, logits[:1], [0], [row])
                assert torch.equal(alone[0], together[line])

    def test_a_readmitted_sequence_continues_unchanged(self) -> None:
        """Preempted after four tokens, it is admitted again with them, in another row."""
        logits = _logits(1, seed=3)
        with self.opened() as steady, self.opened() as moved:
            for row in self.admitted(steady):
                params = self.requests()[row]
                there = _ROWS - 1 - row
                moved.admit(there, params, _ids(_PROMPT), _ids(()))
                for token in _OUTPUT:
                    steady.append(torch.tensor([row]), torch.tensor([token]))
                moved.append(torch.tensor([there]), torch.tensor([41]))  # discarded by the removal
                moved.remove(there)
                if moved.admit(there, params, _ids(_PROMPT), _ids(_OUTPUT)):
                    after = self.apply(moved, logits, [0], [there])
                    moved.remove(there)
                else:
                    after = logits
                assert torch.equal(self.apply(steady, logits, [0], [row]), after)

    def test_a_row_has_no_state_of_its_previous_sequence(self) -> None:
        logits = _logits(1, seed=4)
        requests = self.requests()
        with self.opened() as used, self.opened() as fresh:
            for params in requests:
                for earlier in requests:
                    if used.admit(0, earlier, _ids((1, 2, 3)), _ids((4, 4))):
                        used.append(torch.tensor([0]), torch.tensor([8]))
                        used.remove(0)
                if not used.admit(0, params, _ids(_PROMPT), _ids(_OUTPUT)):
                    continue
                fresh.admit(0, params, _ids(_PROMPT), _ids(_OUTPUT))
                seen, expected = (self.apply(p, logits, [0], [0]) for p in (used, fresh))
                assert torch.equal(seen, expected)
                used.remove(0)
                fresh.remove(0)

    def test_batched_token_updates_equal_single_updates(self) -> None:
        with self.opened() as at_once, self.opened() as singly:
            rows = self.admitted(at_once)
            self.admitted(singly)
            tokens = [(7 * row + 5) % _VOCAB for row in rows]
            at_once.append(torch.tensor(rows), torch.tensor(tokens))
            for row, token in zip(rows, tokens, strict=True):
                singly.append(torch.tensor([row]), torch.tensor([token]))
            logits, lines = _logits(len(rows), seed=5), list(range(len(rows)))
            assert torch.equal(
                self.apply(at_once, logits, lines, rows), self.apply(singly, logits, lines, rows)
            )
