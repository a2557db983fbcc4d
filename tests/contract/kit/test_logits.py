"""Logits processor conformance: rejects writes to other rows and lost state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_hooks.logits import RequestRefused
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.logits import LogitsProcessorConformance, Sampling

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(LogitsProcessorConformance, Kind.LOGITS_PROCESSOR, "penalties") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def changes_every_line(processor: Any) -> None:
    apply = processor.apply

    def broken(logits: Any, index: Any, rows: Any) -> None:
        apply(logits, index, rows)
        logits -= 1.0

    processor.apply = broken


def takes_lines_for_rows(processor: Any) -> None:
    apply = processor.apply
    processor.apply = lambda logits, index, rows: apply(logits, index, index % 6)


def changes_a_copy(processor: Any) -> None:
    apply = processor.apply
    processor.apply = lambda logits, index, rows: apply(logits.clone(), index, rows)


def forgets_what_was_generated(processor: Any) -> None:
    admit = processor.admit
    processor.admit = lambda row, params, prompt, output: admit(row, params, prompt, output[:0])


def remembers_who_was_there(processor: Any) -> None:
    admit = processor.admit
    seen: dict[int, list[int]] = {}

    def broken(row: int, params: Any, prompt: Any, output: Any) -> Any:
        seen.setdefault(row, []).extend(output.tolist())
        return admit(row, params, prompt, np.array(seen[row], np.int32))

    processor.admit = broken


def notes_the_first_row_only(processor: Any) -> None:
    append = processor.append
    processor.append = lambda rows, tokens: append(rows[:1], tokens[:1])


@pytest.mark.parametrize(
    "broken",
    [
        changes_every_line,
        takes_lines_for_rows,
        changes_a_copy,
        forgets_what_was_generated,
        remembers_who_was_there,
        notes_the_first_row_only,
    ],
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(LogitsProcessorConformance, Kind.LOGITS_PROCESSOR, "penalties", broken)


class AsksByName(LogitsProcessorConformance):
    """Requests with a parameter of the processor's own."""

    def requests(self) -> list[Sampling]:
        return [Sampling(frequency_penalty=0.7, extra={"bonus": 1.5})]


@pytest.mark.parametrize(("error", "is_right"), [(RequestRefused, True), (ValueError, False)])
def test_a_value_of_the_clients_is_refused_by_the_error_of_its_own(
    verdict: Verdict, error: type[Exception], is_right: bool
) -> None:
    def picky(processor: Any) -> None:
        admit = processor.admit

        def broken(row: int, params: Any, prompt: Any, output: Any) -> Any:
            if isinstance(params.extra.get("bonus"), str):
                raise error("bonus is no number")
            return admit(row, params, prompt, output)

        processor.admit = broken

    broken = verdict(AsksByName, Kind.LOGITS_PROCESSOR, "penalties", picky)
    name = "test_an_invalid_value_is_refused_as_a_client_error"
    assert broken == ([] if is_right else [name])
