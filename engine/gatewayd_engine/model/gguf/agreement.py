"""Comparison of a GGUF file's metadata with config.json. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from gatewayd_engine.model.config.latent import LatentSpec
from gatewayd_engine.model.gguf.files import GgufFiles
from gatewayd_engine.model.gguf.names import ARCHITECTURES
from gatewayd_engine.model.gguf.values import shown
from gatewayd_engine.model.spec import ModelSpec

_RELATIVE = 1e-6
"""Relative tolerance: the file has float32, config.json decimal numbers."""
_GATING = {"softmax": 1, "sigmoid": 2}
"""Gating functions of a router, as llama.cpp numbers them."""
_DRAFTS = "nextn_predict_layers"
_OF_HEADS = ("qk_nope_head_dim + qk_rope_head_dim", "v_head_dim")


class _Fact(NamedTuple):
    """Metadata key after the architecture's prefix, expected value, and name in config.json."""

    key: str
    expected: float
    field: str
    is_needed: bool = False


def disagreements(files: GgufFiles, spec: ModelSpec) -> list[str]:
    """Return an error message for each difference between the files and the spec."""
    name, architecture = files.first.name, files.architecture
    if spec.architecture not in ARCHITECTURES[architecture]:
        return [
            f"{name}: general.architecture is {architecture}, but config.json says"
            f" {spec.architecture}"
        ]
    return [f"{name}: {problem}" for problem in (*_facts(files, spec), *_head(files, spec))]


def _facts(files: GgufFiles, spec: ModelSpec) -> Iterator[str]:
    drafts = files.metadata.get(f"{files.architecture}.{_DRAFTS}", 0)
    # Files count the layers that predict further tokens, if they have them.
    drafts = drafts if isinstance(drafts, int) else 0
    is_split = f"{files.architecture}.attention.key_length_mla" in files.metadata
    for fact in _expected(spec, drafts, is_split):
        key = f"{files.architecture}.{fact.key}"
        found = files.metadata.get(key)
        # Optional keys may be absent; config.json decides then.
        if found is None:
            if fact.is_needed:
                yield f"it lacks {key}"
        elif not isinstance(found, int | float):
            yield f"{key} is {shown(found)}, but config.json has {fact.field} {fact.expected:.9g}"
        elif not math.isclose(found, fact.expected, rel_tol=_RELATIVE):
            yield f"{key} is {found:.9g}, but config.json has {fact.field} {fact.expected:.9g}"


def _expected(spec: ModelSpec, drafts: int, is_split: bool) -> Iterator[_Fact]:
    yield _Fact("block_count", spec.num_layers + drafts, "num_hidden_layers", True)
    yield _Fact("embedding_length", spec.hidden_size, "hidden_size", True)
    yield _Fact("feed_forward_length", spec.intermediate_size, "intermediate_size", True)
    yield _Fact("attention.head_count", spec.num_heads, "num_attention_heads", True)
    if spec.latent is None:
        yield _Fact("attention.head_count_kv", spec.num_kv_heads, "num_key_value_heads")
        yield _Fact("attention.key_length", spec.head_dim, "head_dim")
        yield _Fact("attention.value_length", spec.head_dim, "head_dim")
    else:
        yield from _of_latents(spec, spec.latent, is_split)
    yield _Fact("attention.layer_norm_rms_epsilon", spec.norm_eps, "rms_norm_eps")
    yield _Fact("rope.dimension_count", spec.rope.rotary_dim, "rotated dimensions")
    yield _Fact("rope.freq_base", spec.rope.theta, "rope_theta")
    if spec.rope.kind in ("linear", "yarn"):
        yield _Fact("rope.scaling.factor", spec.rope.factor, "a factor of")
    yield _Fact("vocab_size", spec.vocab_size, "vocab_size")
    yield from _of_experts(spec)
    # Files of chunked attention do not say how long chunks are.
    if any(spec.windows) and not spec.attention.chunked:
        yield _Fact("attention.sliding_window", max(spec.windows), "sliding_window")
    for key, cap in (
        ("attn_logit_softcapping", spec.attention_softcap),
        ("final_logit_softcapping", spec.logit_softcap),
    ):
        # A file that has a cap where config.json has none is refused, too.
        yield _Fact(key, cap or 0, key)


def _of_latents(spec: ModelSpec, latent: LatentSpec, is_split: bool) -> Iterator[_Fact]:
    """Yield the facts of latent attention; older files have other meanings of lengths."""
    yield _Fact("attention.q_lora_rank", latent.query_rank or 0, "q_lora_rank")
    yield _Fact("attention.kv_lora_rank", latent.rank, "kv_lora_rank", True)
    key, value = (
        (latent.record_dim, latent.rank) if is_split else (latent.key_dim, latent.value_dim)
    )
    key_field, value_field = ("cached keys of", "cached values of") if is_split else _OF_HEADS
    yield _Fact("attention.head_count_kv", 1 if is_split else spec.num_heads, "KV heads")
    yield _Fact("attention.key_length", key, key_field)
    yield _Fact("attention.value_length", value, value_field)
    yield _Fact("attention.key_length_mla", latent.key_dim, _OF_HEADS[0])
    yield _Fact("attention.value_length_mla", latent.value_dim, _OF_HEADS[1])
    if spec.rope.kind == "yarn" and spec.rope.factor > 1:
        # The factor on scores is the square of 1 + 0.1 * mscale_all_dim * log(factor).
        root = math.sqrt(spec.attention_scale * math.sqrt(latent.key_dim))
        multiplier = (root - 1) / math.log(spec.rope.factor)
        yield _Fact("rope.scaling.yarn_log_multiplier", multiplier, "a tenth of mscale_all_dim of")


def _of_experts(spec: ModelSpec) -> Iterator[_Fact]:
    moe = spec.moe
    count = "num_local_experts" if spec.family.experts == "mixtral" else "num_experts"
    yield _Fact("expert_count", moe.num_experts if moe else 0, count, moe is not None)
    used = moe.top_k if moe else 0
    yield _Fact("expert_used_count", used, "num_experts_per_tok", moe is not None)
    if moe is None:
        yield _Fact("expert_shared_count", 0, "shared experts")
        return
    routing, inner = moe.routing, moe.intermediate_size
    yield _Fact("expert_feed_forward_length", inner, "moe_intermediate_size")
    yield _Fact("expert_weights_norm", routing.renormalize, "norm_topk_prob")
    yield _Fact("expert_weights_scale", routing.scale, "a scale of experts of")
    yield _Fact("expert_gating_func", _GATING[routing.scoring], "the gating function")
    yield _Fact("expert_group_count", routing.groups, "n_group")
    yield _Fact("expert_group_used_count", routing.top_groups, "topk_group")
    yield _Fact("leading_dense_block_count", moe.layers.count(False), "first_k_dense_replace")
    shared = 0 if moe.shared is None else moe.shared.intermediate_size
    yield _Fact("expert_shared_count", shared / inner, "shared experts")
    key = "expert_shared_feed_forward_length"
    yield _Fact(key, shared, "shared_expert_intermediate_size")


def _head(files: GgufFiles, spec: ModelSpec) -> Iterator[str]:
    has_head = "lm_head.weight" in files.tensors
    if has_head and spec.tie_word_embeddings:
        yield "it has output.weight, but config.json has tie_word_embeddings true; set it false"
    elif not has_head and not spec.tie_word_embeddings:
        yield "it lacks output.weight, but config.json has tie_word_embeddings false; set it true"
