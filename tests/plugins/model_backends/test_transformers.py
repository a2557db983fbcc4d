"""The backend of transformers: the kit with several families, and what a trace finds."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model

from gatewayd_hooks.testing.model_backends import ModelBackendConformance
from gatewayd_model_transformers.blueprint import trace_model
from gatewayd_model_transformers.strategy import TransformersBackend
from gatewayd_model_transformers.tracing import Unservable, window_of
from tests.engine.core.models.tiny_families import write_tiny


class TestLearnedPositions(ModelBackendConformance):
    def make(self) -> TransformersBackend:
        return TransformersBackend()

    def write(self, folder: Path) -> None:
        write_tiny(folder, "gpt2")


class TestSinksAndExperts(ModelBackendConformance):
    def make(self) -> TransformersBackend:
        return TransformersBackend()

    def write(self, folder: Path) -> None:
        write_tiny(folder, "gpt_oss")


class TestLatentAttention(ModelBackendConformance):
    def make(self) -> TransformersBackend:
        return TransformersBackend()

    def write(self, folder: Path) -> None:
        write_tiny(folder, "deepseek_v3")


@pytest.mark.parametrize("window", [0, 1, 7, 32])
def test_a_window_is_found_by_the_values_of_its_mask(window: int) -> None:
    def mask(batch: object, head: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = key <= query
        return seen & (key > query - window) if window else seen

    assert window_of(mask, 40) == window


@pytest.mark.parametrize("kind", ["blocks", "prefix", "all"])
def test_other_masks_are_refused(kind: str) -> None:
    def mask(batch: object, head: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return {
            "blocks": (key <= query) & (key // 8 == query // 8),
            "prefix": (key <= query) | (key < 4),
            "all": key >= 0,
        }[kind].expand(40)

    with pytest.raises(Unservable, match="neither causal nor a sliding window"):
        window_of(mask, 40)


def test_facts_of_layers_are_padded_to_the_largest(tmp_path: Path) -> None:
    write_tiny(tmp_path, "mimo_v2_flash")
    found = trace_model(str(tmp_path), None)
    assert found.facts.attention.num_heads == 8
    assert found.facts.attention.num_kv_heads == 4
    assert found.facts.has_sinks
    assert {layer.per_group for layer in found.layers} == {1, 2}


def test_positions_that_begin_after_the_padding_shorten_the_context(tmp_path: Path) -> None:
    write_tiny(tmp_path, "roberta")
    assert trace_model(str(tmp_path), None).facts.max_model_len == 511


def test_end_tokens_are_read_from_both_files(tmp_path: Path) -> None:
    write_tiny(tmp_path, "gpt2")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 1, 9]}')
    assert trace_model(str(tmp_path), None).facts.eos_token_ids == (1, 7, 9)


def test_undocumented_functions_of_the_library_are_as_they_were() -> None:
    """Look at what has changed before the ceiling in pyproject.toml is raised."""
    found = {
        each.__name__: list(inspect.signature(each).parameters)
        for each in (
            convert_and_load_state_dict_in_model,
            get_model_conversion_mapping,
            PreTrainedModel._get_dtype_plan,
            PreTrainedModel._move_missing_keys_from_meta_to_device,
            PreTrainedModel._initialize_missing_keys,
            PreTrainedModel._adjust_missing_and_unexpected_keys,
            PreTrainedModel.mark_tied_weights_as_initialized,
            PreTrainedModel.tie_weights,
        )
    }
    assert found == {
        "convert_and_load_state_dict_in_model": [
            *("model", "state_dict", "load_config", "disk_offload_index")
        ],
        "get_model_conversion_mapping": ["model", "key_mapping", "hf_quantizer", "add_legacy"],
        "_get_dtype_plan": ["self", "dtype"],
        "_move_missing_keys_from_meta_to_device": [
            *("self", "missing_keys", "device_map", "device_mesh", "hf_quantizer")
        ],
        "_initialize_missing_keys": ["self", "is_quantized"],
        "_adjust_missing_and_unexpected_keys": ["self", "loading_info"],
        "mark_tied_weights_as_initialized": ["self", "loading_info"],
        "tie_weights": ["self", "missing_keys", "recompute_mapping"],
    }
