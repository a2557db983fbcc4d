"""Ragged prefill attention: keys of the step and of earlier pages, on the stand-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention import fake_flashinfer
from tests.engine.attention.steps import Sequences, some_counts

SHAPE = AttentionShape(2, 6, 2, 8, 0.3, None, (0, 0))

Make = Callable[[Sequences], Any]


@pytest.fixture(params=[0, 1 << 30], ids=["merged", "apart"])
def make(
    flashinfer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Make:
    """Attention as on Hopper; merged whatever the lengths, or never."""
    monkeypatch.setattr(flashinfer.flash, "prefill_backend", lambda shape, pool: "fa3")
    kind = flashinfer.ragged.RaggedChunks
    monkeypatch.setattr(
        flashinfer.flash,
        "RaggedChunks",
        lambda *args: kind(*args, least_merged=request.param),
    )

    def made(sequences: Sequences) -> Any:
        return flashinfer.FlashAttention(sequences.shape, sequences.pool, sequences.append)

    return made


def kinds() -> list[str]:
    """What ran since it was asked last, by its wrapper."""
    names = [type(run).__name__ for run in fake_flashinfer.RUNS]
    fake_flashinfer.RUNS.clear()
    return [name.removeprefix("Batch").removesuffix("KVCacheWrapper") for name in names]


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("windows", [(0, 0), (9, 0)])
def test_steps_give_what_the_definition_gives(
    make: Make, softcap: float | None, windows: tuple[int, ...]
) -> None:
    sequences = Sequences(replace(SHAPE, softcap=softcap, windows=windows), seed=1)
    attention = make(sequences)
    for row in range(5):
        sequences.fill(row, [1, 4, 5, 33, 80][row])
    sequences.check(attention, {5: 3, 6: 9})
    for _ in range(14):
        sequences.check(attention, some_counts(sequences))
    assert "PrefillWithRagged" in kinds()


def test_prompts_of_which_nothing_is_cached_read_no_pages(make: Make) -> None:
    sequences = Sequences(SHAPE)
    sequences.fill(0, 7)
    attention = make(sequences)
    sequences.check(attention, {0: 1, 1: 5, 2: 4})
    # Layers behind the first call what launches by itself.
    assert kinds() == ["DecodeWithPaged", "PrefillWithRagged"]


@pytest.mark.parametrize("make", [0], indirect=True)
@pytest.mark.parametrize("cached", [1, 3, 4, 5, 8])
def test_what_is_cached_is_merged(make: Make, cached: int) -> None:
    sequences = Sequences(SHAPE)
    sequences.fill(1, cached)
    sequences.fill(3, 11)
    attention = make(sequences)
    # The third has nothing cached; a page holds four tokens, some cached and some new.
    sequences.check(attention, {0: 1, 1: 2, 2: 6, 3: 9})
    assert kinds() == ["DecodeWithPaged", *["PrefillWithRagged", "PrefillWithPaged"] * 2]


@pytest.mark.parametrize("make", [1 << 30], indirect=True)
def test_short_chunks_behind_cached_tokens_read_pages(make: Make) -> None:
    sequences = Sequences(SHAPE)
    sequences.fill(1, 5)
    sequences.check(make(sequences), {1: 2, 2: 6})
    assert kinds() == ["PrefillWithPaged"]


def test_windows_behind_cached_tokens_read_pages(make: Make) -> None:
    sequences = Sequences(replace(SHAPE, windows=(9, 0)))
    sequences.fill(1, 5)
    sequences.check(make(sequences), {1: 2, 2: 6})
    assert set(kinds()) == {"PrefillWithPaged"}


@pytest.mark.parametrize("make", [8], indirect=True)
def test_merging_pays_by_the_length_of_chunks(make: Make) -> None:
    sequences = Sequences(SHAPE)
    for row in (1, 2, 3, 4):
        sequences.fill(row, 5)
    attention = make(sequences)
    sequences.check(attention, {1: 7, 2: 7})
    assert kinds() == ["PrefillWithPaged"]
    # Of ten tokens, nine are in a chunk of nine: 8.2 on average.
    sequences.check(attention, {3: 9, 0: 2})
    assert kinds() == ["PrefillWithPaged"]
    sequences.check(attention, {4: 11, 5: 2})
    assert kinds() == ["PrefillWithRagged", "PrefillWithPaged"] * 2


def test_only_steps_that_need_it_rotate_keys_in_place(make: Make) -> None:
    sequences = Sequences(SHAPE)
    attention = make(sequences)
    before = torch.randn(6, 10, 8)
    for counts, is_rotated in (({0: 6}, True), ({0: 1}, False)):
        heads = before[: sum(counts.values())].clone()
        inputs = sequences.inputs(counts)
        sequences.known[0] = torch.zeros(2, sum(counts.values()), 4, 8)
        attention.eager(inputs)(1, heads)
        assert heads[:, 8:].equal(before[: len(heads), 8:])
        assert heads[:, 6:8].equal(before[: len(heads), 6:8]) != is_rotated
