"""config.json: both forms of its fields, and unsupported values."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.model import embedded
from gatewayd_engine.model.config.context import served_context
from gatewayd_engine.model.spec import ModelSpec, SpecError, read_spec

LLAMA4 = {
    "architectures": ["Llama4ForCausalLM"],
    "intermediate_size_mlp": 64,
    "num_local_experts": 4,
}
NANO: dict[str, Any] = json.loads((embedded.folder("nano") / "config.json").read_text())


def spec_of(
    folder: Path,
    changes: dict[str, Any],
    max_model_len: int | None = None,
    without: tuple[str, ...] = (),
) -> ModelSpec:
    config = {**NANO, **changes}
    for key in without:
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    return read_spec(folder, max_model_len)


def test_nano_is_described_in_full() -> None:
    spec = read_spec(embedded.folder("nano"))
    assert spec.architecture == "LlamaForCausalLM"
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (6, 6, 2, 64)
    assert (spec.hidden_size, spec.intermediate_size, spec.vocab_size) == (384, 1024, 4096)
    assert (spec.max_model_len, spec.eos_token_ids, spec.dtype) == (2048, (0, 2), "bfloat16")
    shape = spec.attention
    assert (shape.num_layers, shape.scale, shape.softcap, shape.windows) == (
        6,
        0.125,
        None,
        (0,) * 6,
    )


def test_the_architecture_follows_from_the_model_type_when_none_is_named(tmp_path: Path) -> None:
    changes = {"model_type": "qwen2"}
    spec = spec_of(tmp_path, changes, without=("architectures",))
    assert spec.architecture == "Qwen2ForCausalLM"
    assert spec.qkv_bias
    assert not spec.output_bias


def test_a_shorter_context_is_taken_and_a_longer_one_refused(tmp_path: Path) -> None:
    assert spec_of(tmp_path, {}, max_model_len=100).max_model_len == 100
    with pytest.raises(SpecError, match=r"max_model_len is 4096; .* between 1 and 2048"):
        spec_of(tmp_path, {}, max_model_len=4096)
    with pytest.raises(SpecError, match="max_model_len is 0"):
        spec_of(tmp_path, {}, max_model_len=0)


def test_a_context_of_millions_is_served_in_part_of_llama_4_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stated = {"max_position_embeddings": 10_485_760}
    with pytest.raises(SpecError, match=r"10485760 tokens is above 2097152; set \[model\] max_mo"):
        spec_of(tmp_path, stated)
    assert spec_of(tmp_path, stated, 1 << 21).max_model_len == 1 << 21
    caplog.clear()
    assert spec_of(tmp_path, {**LLAMA4, **stated}).max_model_len == 1 << 21
    assert caplog.messages == [
        "config.json states a context of 10485760 tokens, of which 2097152 are served; set [model]"
        " max_model_len to serve fewer"
    ]
    caplog.clear()
    assert spec_of(tmp_path, {**LLAMA4, **stated}, 4096).max_model_len == 4096
    assert caplog.messages == []
    with pytest.raises(SpecError, match="above 2097152"):
        spec_of(tmp_path, {**LLAMA4, **stated}, (1 << 21) + 1)


@pytest.mark.parametrize(
    ("values", "tokens"),
    [
        ({}, None),
        ({"max_position_embeddings": "x"}, None),
        ({"max_position_embeddings": 10_485_760}, 10_485_760),
        ({"max_position_embeddings": 4096, "text_config": {"hidden_size": 1}}, 4096),
        ({"text_config": {"max_position_embeddings": 512}, "model_type": "emu3"}, 512),
        ({"text_config": 3}, None),
        ({**LLAMA4, "max_position_embeddings": 10_485_760}, 1 << 21),
        (
            {
                "architectures": ["Llama4ForConditionalGeneration"],
                "text_config": {
                    "model_type": "llama4_text",
                    "max_position_embeddings": 10_485_760,
                },
            },
            1 << 21,
        ),
        (
            {
                "architectures": ["Gemma3ForConditionalGeneration"],
                "text_config": {"model_type": "gemma3_text"},
            },
            131_072,
        ),
    ],
)
def test_the_context_of_a_configuration_is_that_of_its_language_model(
    values: dict[str, Any], tokens: int | None
) -> None:
    assert served_context(values) == tokens


def test_yarn_reaches_its_stretched_context_whichever_length_the_config_states(
    tmp_path: Path,
) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert spec_of(tmp_path, {"rope_scaling": scaling}).max_model_len == 8192


@pytest.mark.parametrize(
    ("asked", "length", "stretch"), [(None, 512, 1.0), (512, 512, 1.0), (513, 513, 2.0)]
)
def test_longrope_keeps_to_the_original_context_unless_more_is_asked_for(
    tmp_path: Path, asked: int | None, length: int, stretch: float
) -> None:
    rope = {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    changes = {
        "architectures": ["Phi3ForCausalLM"],
        "original_max_position_embeddings": 512,
        "rope_scaling": rope,
    }
    spec = spec_of(tmp_path, changes, max_model_len=asked)
    assert spec.max_model_len == length
    assert spec.rope.stretch == (stretch,) * 32
    assert spec.rope.magnitude > 1  # of 2048 over 512, for both sets


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("LlamaForCausalLM", {"sliding_window": 8}, (0, 0, 0, 0)),
        ("MistralForCausalLM", {}, (4096,) * 4),
        ("MistralForCausalLM", {"sliding_window": None}, (0, 0, 0, 0)),
        ("Qwen2ForCausalLM", {"sliding_window": 8}, (0, 0, 0, 0)),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            (0, 0, 0, 8),
        ),
        (
            "Qwen3ForCausalLM",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", *["full_attention"] * 3],
            },
            (8, 0, 0, 0),
        ),
        ("Gemma2ForCausalLM", {"sliding_window": 8}, (8, 0, 8, 0)),
        ("Gemma2ForCausalLM", {}, (4096, 0, 4096, 0)),
        ("Llama4ForCausalLM", {**LLAMA4, "attention_chunk_size": 512}, (512, 512, 512, 0)),
        ("Llama4ForCausalLM", {**LLAMA4, "attention_chunk_size": 2047}, (2047, 2047, 2047, 0)),
        # Contexts within one chunk.
        ("Llama4ForCausalLM", {**LLAMA4, "attention_chunk_size": 2048}, (0, 0, 0, 0)),
        ("Llama4ForCausalLM", LLAMA4, (0, 0, 0, 0)),
        ("Llama4ForCausalLM", {**LLAMA4, "attention_chunk_size": None}, (0, 0, 0, 0)),
        (
            "Llama4ForCausalLM",
            {
                **LLAMA4,
                "attention_chunk_size": 512,
                "layer_types": ["full_attention", "chunked_attention"] * 2,
            },
            (0, 512, 0, 512),
        ),
        ("Phi3ForCausalLM", {"sliding_window": 8}, (8, 8, 8, 8)),
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 2, "sliding_window": 8}, (8, 0, 8, 0)),
        ("Olmo3ForCausalLM", {}, (4096, 4096, 4096, 0)),
        ("SmolLM3ForCausalLM", {"sliding_window": 8}, (0, 0, 0, 0)),
        ("SmolLM3ForCausalLM", {"sliding_window": 8, "use_sliding_window": True}, (0, 0, 0, 8)),
        (
            "SmolLM3ForCausalLM",
            {"sliding_window": 8, "use_sliding_window": True, "no_rope_layers": [0, 1, 1, 0, 1]},
            (8, 0, 0, 8),
        ),
    ],
)
def test_windows_are_those_of_the_family(
    tmp_path: Path, architecture: str, changes: dict[str, Any], windows: tuple[int, ...]
) -> None:
    changes = {"architectures": [architecture], "num_hidden_layers": 4, **changes}
    assert spec_of(tmp_path, changes).windows == windows


@pytest.mark.parametrize(
    ("architecture", "changes", "kinds", "thetas"),
    [
        (
            "Gemma3ForCausalLM",
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            ("default", "default", "linear"),
            (1e4, 1e4, 5e5),
        ),
        (
            "Gemma3ForCausalLM",
            {"rope_theta": None, "rope_local_base_freq": 100.0},
            ("default", "default", "default"),
            (100.0, 100.0, 1e6),
        ),
        (
            "Gemma3ForCausalLM",
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 7.0},
                    "sliding_attention": {"rope_theta": 9.0},
                }
            },
            ("default", "default", "default"),
            (9.0, 9.0, 7.0),
        ),
        (
            "Olmo3ForCausalLM",
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
            ("default", "default", "yarn"),
            (5e5, 5e5, 5e5),
        ),
        (
            "SmolLM3ForCausalLM",
            {"rope_theta": 5e5, "no_rope_layers": [1, 0, 1]},
            ("default", "none", "default"),
            (5e5, 5e5, 5e5),
        ),
    ],
)
def test_layers_rotate_as_those_of_the_family(
    tmp_path: Path,
    architecture: str,
    changes: dict[str, Any],
    kinds: tuple[str, ...],
    thetas: tuple[float, ...],
) -> None:
    fixed = {"architectures": [architecture], "num_hidden_layers": 3, "sliding_window_pattern": 3}
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    spec = spec_of(tmp_path, {**fixed, "layer_types": types, **changes})
    assert tuple(rope.kind for rope in spec.layer_ropes) == kinds
    assert tuple(rope.theta for rope in spec.layer_ropes) == thetas


def test_every_checkpoint_of_transformers_is_read(
    variant: str, checkpoint: Callable[[str], Path]
) -> None:
    spec = read_spec(checkpoint(variant))
    assert spec.eos_token_ids == (1,)
    assert spec.dtype == "float32"
    assert len(spec.windows) == spec.num_layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; .*Llama"),
        ({"architectures": [], "model_type": "opt"}, "opt is not supported"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list of strings"),
        ({"num_attention_heads": "6"}, "num_attention_heads must be a positive integer, not '6'"),
        ({"num_attention_heads": True}, "num_attention_heads must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be between 1"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers must be between 1 and 4096"),
        ({"hidden_size": -1}, "hidden_size must be between 1"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"num_key_value_heads": 4}, "num_attention_heads is 6, no multiple .* 4"),
        ({"head_dim": 63}, "63 of 63 dimensions"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be above 0"),
        ({"hidden_act": "relu6"}, "activation 'relu6' is not supported; .*silu"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn are not supported; .*bfloat16"),
        ({"quantization_config": "gptq"}, "quantization_config must be an object, not str"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id must be one or more integers"),
        ({"rope_scaling": {"type": "mrope"}}, "rope type 'mrope' is not supported; .*llama3"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "lacks low_freq_factor"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling lacks factor"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "short_factor must be a list of 32 numbers",
        ),
        ({"rope_parameters": {"full_attention": {}}}, "differs by layer"),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "layer_types": ["chunked_attention"] * 6,
            },
            "layer_types must name full_attention or sliding_attention .* chunked_attention",
        ),
        *(
            ({**LLAMA4, "attention_chunk_size": size}, f"attention_chunk_size must be {allowed}")
            for size, allowed in (
                *((0, "between 1 and 2147483647"), (-8192, "between 1 and 2147483647")),
                *((2**31, "between 1 and 2147483647"), (8192.0, "a positive integer")),
            )
        ),
        (
            {**LLAMA4, "layer_types": ["sliding_attention"] * 6},
            "layer_types must name full_attention or chunked_attention .* sliding_attention",
        ),
        (
            {"architectures": ["Gemma2ForCausalLM"], "layer_types": ["full_attention"]},
            "for each of 6 layers",
        ),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0]},
            "no_rope_layers must have a 0 or 1 for each of 6 layers",
        ),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [2] * 6},
            "no_rope_layers must have a 0 or 1",
        ),
        (
            {
                "architectures": ["Olmo3ForCausalLM"],
                "rope_parameters": {"sliding_attention": {"rope_type": "linear"}},
            },
            "sliding_attention lacks factor",
        ),
        (
            {"architectures": ["Gemma2ForCausalLM"], "use_bidirectional_attention": True},
            "use_bidirectional_attention is not supported",
        ),
        ({"clip_qkv": 8.0}, "clip_qkv is not supported"),
        (
            {
                "architectures": ["MixtralForCausalLM"],
                "num_local_experts": 2,
                "num_experts_per_tok": 3,
            },
            "num_experts_per_tok is 3, more than 2 experts",
        ),
        (
            {
                "architectures": ["MixtralForCausalLM"],
                "num_local_experts": 1 << 30,
                "num_experts_per_tok": 3,
            },
            "1073741824 experts in each of 6 layers are more than 262144",
        ),
    ],
)
def test_what_cannot_be_served_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(tmp_path, changes)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=r"config\.json"):
        read_spec(tmp_path)


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    1.5,
    1e308,
    2**31 - 1,
    2**40,
    float("nan"),
    "x",
    [],
    [1],
    ["x"],
    {},
    {"x": 1},
)


@pytest.mark.parametrize(
    "name",
    [
        *("llama3", "llama_yarn", "phi3_longrope", "qwen2", "gemma2", "olmo3", "smollm3"),
        *("qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss", "llama4", "deepseek_v2", "deepseek_v3"),
    ],
)
def test_any_odd_value_is_either_served_or_refused_by_name(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    config = json.loads((checkpoint(name) / "config.json").read_text())
    rope = config["rope_parameters"]
    odd = [{**config, key: value} for key in config for value in ODD]
    odd += [{**config, "rope_parameters": {**rope, key: value}} for key in rope for value in ODD]
    refusals = []
    for changed in odd:
        (tmp_path / "config.json").write_text(json.dumps(changed))
        try:
            read_spec(tmp_path)
        except SpecError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert all("config.json" in refusal for refusal in refusals)


def test_a_config_of_the_first_llama_releases_is_read(tmp_path: Path) -> None:
    later = ("head_dim", "num_key_value_heads", "rope_theta", "torch_dtype", "hidden_act")
    spec = spec_of(tmp_path, {}, without=later)
    assert (spec.head_dim, spec.num_kv_heads, spec.rope.theta) == (64, 6, 10_000.0)
    assert (spec.dtype, spec.activation) == ("float32", "silu")


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json does not exist"):
        read_spec(tmp_path)


def test_code_that_a_checkpoint_brings_is_not_run_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        spec_of(tmp_path, {"auto_map": {"AutoModelForCausalLM": "evil.Model"}})
    assert "auto_map; it is not run" in caplog.text
