"""Model backend conformance: rejects layers that see what they must not, and wrong facts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_hooks.testing.model_backends import ModelBackendConformance
from gatewayd_model_transformers.strategy import TransformersBackend
from tests.engine.core.models.tiny_families import write_tiny

Breaks = Callable[[Any], None]


def failures(breaks: Breaks, folder: Path) -> list[str]:
    """Tests of the kit that fail for a backend that was changed."""

    class Case(ModelBackendConformance):
        def make(self) -> TransformersBackend:
            backend = TransformersBackend()
            breaks(backend)
            return backend

        def write(self, to: Path) -> None:
            write_tiny(to, "olmo2")

    failed = []
    for name, _ in inspect.getmembers(Case, inspect.isfunction):
        if name.startswith("test_"):
            (own := folder / name).mkdir()
            try:
                getattr(Case(), name)(own)
            except (AssertionError, pytest.fail.Exception):
                failed.append(name)
    return failed


def breaks_nothing(backend: Any) -> None:
    pass


def test_a_sound_one_passes(tmp_path: Path) -> None:
    assert failures(breaks_nothing, tmp_path) == []


def _with_hidden(backend: Any, change: Callable[..., torch.Tensor]) -> None:
    load = backend.load

    def broken(weights: Any) -> Any:
        model = load(weights)
        hidden = model.hidden
        model.hidden = lambda ids, positions, attend: change(hidden, ids, positions, attend)
        return model

    backend.load = broken


def carries_a_state_from_token_to_token(backend: Any) -> None:
    _with_hidden(
        backend,
        lambda hidden, ids, positions, attend: hidden(ids, positions, attend).cumsum(0),
    )


def calls_layers_in_another_order(backend: Any) -> None:
    _with_hidden(
        backend,
        lambda hidden, ids, positions, attend: hidden(
            ids, positions, lambda layer, query, kv: attend(3 - layer, query, kv)
        ),
    )


def _with_facts(backend: Any, **changes: Any) -> None:
    facts = backend.facts
    backend.facts = lambda: replace(facts(), **changes)


def claims_another_vocabulary(backend: Any) -> None:
    _with_facts(backend, vocab_size=321)


def has_end_tokens_twice(backend: Any) -> None:
    _with_facts(backend, eos_token_ids=(1, 1))


def ignores_the_context_length(backend: Any) -> None:
    _with_facts(backend, max_model_len=512)


@pytest.mark.parametrize(
    ("breaks", "test"),
    [
        (
            carries_a_state_from_token_to_token,
            "test_a_chunked_sequence_has_the_hidden_states_of_a_whole_one",
        ),
        (carries_a_state_from_token_to_token, "test_sequences_of_a_step_do_not_see_each_other"),
        (calls_layers_in_another_order, "test_a_step_calls_attention_once_for_each_layer"),
        (claims_another_vocabulary, "test_hidden_states_and_logits_have_the_sizes_of_its_facts"),
        (has_end_tokens_twice, "test_its_facts_are_sizes"),
        (ignores_the_context_length, "test_a_context_length_is_kept_or_refused"),
    ],
)
def test_a_broken_one_fails(breaks: Breaks, test: str, tmp_path: Path) -> None:
    assert test in failures(breaks, tmp_path)
