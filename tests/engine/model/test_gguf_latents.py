"""GGUF files of models with latent attention: forms of their matrices, old files, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.model.gguf.expansion.model_folder import expanded
from gatewayd_engine.model.gguf.header import read_header
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import read_spec
from tests.engine.gguf_blocks import packed
from tests.engine.gguf_families import DEEPSEEK2, DEEPSEEK3, TOKENIZER
from tests.engine.gguf_files import Put, convert
from tests.engine.gguf_latents import OLD
from tests.engine.model.test_gguf import ALL, IDS, loaded, opened
from tests.engine.model.test_gguf_experts import rewritten

SIZES = {"num_hidden_layers": 2, "max_shard_size": "1GB"}
WIDE = {
    **SIZES,
    "hidden_size": 256,
    "kv_lora_rank": 256,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
OLD_WIDE = {
    **OLD,
    "deepseek2.attention.key_length": 64,
    "deepseek2.attention.value_length": 32,
}
Make = Callable[..., tuple[Path, Path, Path]]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def converted(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Make:
    """A checkpoint, a folder with it as GGUF, and one with the same numbers as safetensors."""

    def make(name: str, sizes: dict[str, Any], kinds: Any = ("F32",), **more: Any) -> Any:
        source = make_checkpoint(tmp_path / "source", name, **sizes)
        folder, plain = tmp_path / "gguf", tmp_path / "plain"
        folder.mkdir()
        plain.mkdir()
        numbers = convert(source, folder, "deepseek2", kinds, **{**TOKENIZER, **more})
        shutil.copy(source / "config.json", plain)
        save_file({k: t.contiguous() for k, t in numbers.items()}, plain / "model.safetensors")
        return source, folder, plain

    return make


@pytest.mark.parametrize(
    ("name", "is_old", "facts"),
    [
        ("deepseek_v2", False, DEEPSEEK2),
        ("deepseek_v2", True, {**DEEPSEEK2, **OLD_WIDE, "deepseek2.expert_gating_func": None}),
        ("deepseek_v3", False, DEEPSEEK3),
        ("deepseek_v3", True, {**DEEPSEEK3, **OLD_WIDE}),
        ("youtu", False, {}),
    ],
)
def test_logits_are_those_of_transformers_with_the_same_numbers(
    name: str,
    is_old: bool,
    facts: dict[str, Any],
    converted: Make,
    our_logits: Any,
    their_logits: Any,
) -> None:
    sizes = {**WIDE, "q_lora_rank": None} if name == "deepseek_v2" else WIDE
    _, folder, plain = converted(name, sizes, ALL, is_apart=is_old, **facts)
    stored = read_header(folder / "model.gguf").tensors
    assert ("blk.0.attn_kv_b.weight" in stored) is is_old
    assert ("blk.0.attn_k_b.weight" in stored) is not is_old
    theirs = their_logits(plain, IDS)
    torch.testing.assert_close(our_logits(loaded(folder), IDS), theirs, atol=2e-4, rtol=2e-4)
    # By itself, too.
    (folder / "config.json").unlink()
    alone = our_logits(loaded(expanded(folder)), IDS)
    torch.testing.assert_close(alone, theirs, atol=2e-4, rtol=2e-4)


def test_every_type_of_a_heads_matrices_is_read(converted: Make) -> None:
    _, folder, plain = converted("youtu", {**WIDE, "qk_nope_head_dim": 256})
    wanted = load_file(plain / "model.safetensors")["model.layers.0.self_attn.kv_b_proj.weight"]
    by_head = torch.unflatten(wanted, 0, (4, -1))
    keys, values = by_head[:, :256].transpose(1, 2).contiguous(), by_head[:, 256:].contiguous()
    config = (folder / "config.json").read_text()
    for kind in ALL:

        def change(put: Put, kind: str = kind) -> Put:
            parts = {"blk.0.attn_k_b.weight": keys, "blk.0.attn_v_b.weight": values}
            part = parts.get(put.name)
            return put if part is None else put._replace(type=kind, data=packed(kind, part))

        rewritten(folder, "deepseek2", change)
        (folder / "config.json").write_text(config)
        checkpoint = opened(folder)
        for name, part in (("k_b_proj", keys), ("v_b_proj", values)):
            found = checkpoint.matrix(f"model.layers.0.self_attn.{name}")
            assert isinstance(found, torch.Tensor)
            error = (found.float() - part.flatten(0, 1)).abs().mean() / part.abs().mean()
            assert error < 0.4, (kind, name)


def test_a_file_of_glm_is_read_with_its_layers_for_further_tokens(converted: Make) -> None:
    # Without the function of the router, as their config.json does not name it.
    facts = {
        **DEEPSEEK3,
        "deepseek2.expert_gating_func": None,
        "deepseek2.leading_dense_block_count": 1,
        "deepseek2.block_count": 3,
        "deepseek2.nextn_predict_layers": 1,
    }
    sizes = {
        **SIZES,
        "mlp_layer_types": ["dense", "sparse"],
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    }
    source, folder, _ = converted("glm4_moe_lite", sizes, **facts)

    more = {"attn_k_b": (4, 24, 12), "nextn.eh_proj": (64, 128)}
    drafts = [
        Put(f"blk.2.{end}.weight", shape, "F32", packed("F32", torch.ones(shape)))
        for end, shape in more.items()
    ]
    rewritten(folder, "deepseek2", lambda put: put, drafts, **_short({**TOKENIZER, **facts}))
    with_config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**with_config, "num_nextn_predict_layers": 1}))
    assert opened(folder).spec.architecture == "Glm4MoeLiteForCausalLM"
    (folder / "config.json").unlink()
    spec, theirs = opened(expanded(folder)).spec, read_spec(source)
    assert spec.draft_layers == 1
    assert (spec.family, spec.latent, spec.num_layers) == (theirs.family, theirs.latent, 2)
    assert spec.moe == theirs.moe


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"attention.kv_lora_rank": None}, "model.gguf lacks deepseek2.attention.kv_lora_rank"),
        ({"attention.kv_lora_rank": 0}, "kv_lora_rank must be an integer from 1 to"),
        ({"attention.q_lora_rank": "20"}, "q_lora_rank must be an integer from 1 to"),
        ({"rope.dimension_count": None}, "model.gguf lacks deepseek2.rope.dimension_count"),
        (
            {"rope.dimension_count": 20},
            "key_length_mla must be above 20, deepseek2.rope.dimension_count, not 20",
        ),
        ({"attention.value_length_mla": None}, "lacks deepseek2.attention.value_length_mla"),
        ({"attention.temperature_scale": 0.1}, "temperature_scale must be absent, as queries"),
        ({"expert_gating_func": 1}, "must be 2, sigmoid, in a file with tensors exp_probs_b"),
        ({"expert_gating_func": 4}, "must be 2, sigmoid, in a file with tensors exp_probs_b"),
        ({"expert_used_count": None}, "model.gguf lacks deepseek2.expert_used_count"),
        ({"expert_group_count": 0}, "expert_group_count must be an integer from 1 to"),
    ],
)
def test_what_cannot_be_served_is_named(
    facts: dict[str, Any], sentence: str, converted: Make
) -> None:
    _, folder, _ = converted("deepseek_v3", SIZES, **DEEPSEEK3)
    said = {**_short({**TOKENIZER, **DEEPSEEK3}), **facts}
    rewritten(folder, "deepseek2", lambda put: put, **said)
    (folder / "config.json").unlink()
    with pytest.raises(LoadError) as raised:
        expanded(folder)
    assert sentence in str(raised.value)
    assert "model.gguf" in str(raised.value)


def test_softmax_whose_choice_is_scaled_to_one_is_named(converted: Make) -> None:
    more: dict[str, Any] = {**DEEPSEEK2, "deepseek2.expert_weights_norm": True}
    _, folder, _ = converted("deepseek_v2", SIZES, **more)
    (folder / "config.json").unlink()
    with pytest.raises(LoadError, match=r"expert_weights_norm must be false where softmax"):
        expanded(folder)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"attention.kv_lora_rank": 20}, "kv_lora_rank is 20, but config.json has kv_lora_rank 24"),
        ({"attention.q_lora_rank": 24}, "q_lora_rank is 24, but config.json has q_lora_rank 20"),
        ({"attention.key_length": 20}, "key_length is 20, but config.json has cached keys of 32"),
        ({"attention.head_count_kv": 4}, "head_count_kv is 4, but config.json has KV heads 1"),
        ({"attention.value_length_mla": 12}, "is 12, but config.json has v_head_dim 10"),
        (
            {"rope.scaling.yarn_log_multiplier": 0.1},
            "is 0.100000001, but config.json has a tenth of mscale_all_dim of 0.09",
        ),
    ],
)
def test_what_the_file_and_config_json_tell_differently_is_named(
    facts: dict[str, Any], sentence: str, converted: Make
) -> None:
    _, folder, _ = converted("deepseek_v2_yarn", {**SIZES, "mlp_bias": False})
    rewritten(folder, "deepseek2", lambda put: put, **facts)
    with pytest.raises(LoadError) as raised:
        opened(folder)
    assert sentence in str(raised.value)


def test_heads_that_are_not_apart_are_named(converted: Make) -> None:
    _, folder, _ = converted("youtu", SIZES)

    def flat(put: Put) -> Put:
        return put._replace(shape=(96, 12)) if put.name == "blk.1.attn_k_b.weight" else put

    rewritten(folder, "deepseek2", flat)
    with pytest.raises(Exception, match=r"attn_k_b.weight is \[96, 12\]; it must have three dim"):
        opened(folder)


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    """Keys as ``rewritten`` takes them: without the architecture, which it puts before each."""
    return {key.removeprefix("deepseek2."): fact for key, fact in facts.items()}
