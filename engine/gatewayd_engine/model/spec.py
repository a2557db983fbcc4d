"""Model specification, read from config.json and generation_config.json. Imports no torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.model.config.context import read_context
from gatewayd_engine.model.config.families import FAMILIES, Family, find_architecture
from gatewayd_engine.model.config.latent import LatentSpec, read_latent, score_scale
from gatewayd_engine.model.config.moe import MoeSpec, read_moe
from gatewayd_engine.model.config.rope import (
    QueryScale,
    RopeSpec,
    read_layer_ropes,
    read_query_scale,
    read_rope,
)
from gatewayd_engine.model.config.text_part import ANNOUNCED, text_part
from gatewayd_engine.model.config.windows import read_rotated, read_windows
from gatewayd_engine.model.gguf.files import announcement, has_gguf, read_files
from gatewayd_engine.model.json_fields import JsonFields, SpecError
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_hooks.quantization import Announcement

__all__ = ["ModelSpec", "SpecError", "UnsupportedModel", "read_spec"]

_log = logging.getLogger(__name__)

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
DTYPES = ("float32", "bfloat16", "float16")
MOST_LAYERS = 4096


class UnsupportedModel(SpecError):
    """The decoder has no such architecture or operation; a plugin may have it."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Model hyperparameters: everything the decoder needs except the weights.

    ``rope`` is that of layers that attend to all positions, ``layer_ropes`` are per layer,
    ``windows``, too, and 0 means all positions, ``embedding_scale`` multiplies the
    embeddings, ``logit_softcap`` bounds the logits as ``attention_softcap`` does the scores,
    ``query_scale`` is of layers without rotary embedding,
    ``dtype`` is that of the stored weights, ``family`` holds what the architecture fixes,
    ``latent`` holds the sizes of latent attention, with which ``num_kv_heads`` is 1 and
    ``head_dim`` the size of a KV record, ``is_text_part`` says whether the checkpoint is multimodal
    and other parts of it are not read, ``draft_layers`` follow the others in the checkpoint to
    predict further tokens and are not read, ``quantization`` is the checkpoint's description of its
    quantization.
    """

    architecture: str
    family: Family
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    norm_eps: float
    activation: str
    rope: RopeSpec
    layer_ropes: tuple[RopeSpec, ...]
    windows: tuple[int, ...]
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    embedding_scale: float | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str
    moe: MoeSpec | None
    query_scale: QueryScale | None = None
    latent: LatentSpec | None = None
    is_text_part: bool = False
    draft_layers: int = 0
    # Not hashed, as it holds a dict.
    quantization: Announcement | None = field(default=None, hash=False)

    @property
    def attention(self) -> AttentionShape:
        """Parameters for an attention backend."""
        return AttentionShape(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.attention_scale,
            softcap=self.attention_softcap,
            windows=self.windows,
            values_are_keys=self.latent is not None,
            chunked=self.family.windows == "rotated",
            value_dim=0 if self.latent is None else self.latent.rank,
        )


def read_spec(folder: Path, max_model_len: int | None = None) -> ModelSpec:
    """Read a model folder's specification; of the weights, only the headers of GGUF files.

    Args:
        folder: contains config.json and perhaps generation_config.json.
        max_model_len: context length to serve; None for the model's own.

    Raises:
        SpecError: the description is missing, invalid or not supported.
    """
    whole = JsonFields.of_file(folder / "config.json")
    text = text_part(whole)
    config = text or whole
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    if family.qk_norm_flag is not None and not config.flag("use_qk_norm", family.qk_norm_flag):
        family = replace(family, qk_norm=None)
    _refuse_unsupported(config)

    hidden_size, num_heads = config.size("hidden_size"), config.size("num_attention_heads")
    num_kv_heads = config.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise SpecError(
            f"{config.where}: num_attention_heads is {num_heads}, no multiple of"
            f" num_key_value_heads, {num_kv_heads}"
        )
    latent = read_latent(config) if family.latent else None
    if latent is None:
        head_dim = config.size("head_dim", family.head_dim or max(1, hidden_size // num_heads))
        rope = read_rope(config, family, head_dim, max_model_len)
    else:
        num_kv_heads, head_dim = 1, latent.record_dim
        rope = read_rope(config, family, latent.rope_dim, max_model_len)
    context_len = read_context(config, family, rope.max_len, max_model_len)
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    rotated = read_rotated(config, family, num_layers)
    windows = read_windows(config, family, rotated, context_len)
    # Gemma scales scores by another number than the size of a head.
    scalar = float(head_dim)
    if family.query_scalar is not None:
        scalar = config.number("query_pre_attn_scalar", family.query_scalar)
    score_cap, logit_cap = family.softcaps or (None, None)
    if family.softcaps is not None:
        score_cap = config.optional_number("attn_logit_softcapping", score_cap)
        logit_cap = config.optional_number("final_logit_softcapping", logit_cap)
    is_configured = family.biases in ("configured", "qkv_configured", "all")
    has_bias = is_configured and config.flag("attention_bias", family.biases == "all")
    return ModelSpec(
        architecture=architecture,
        family=family,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=hidden_size,
        intermediate_size=config.size(family.dense_size),
        vocab_size=config.size("vocab_size"),
        max_model_len=context_len,
        norm_eps=config.number("rms_norm_eps"),
        activation=_activation(config, family),
        rope=rope,
        layer_ropes=read_layer_ropes(config, family, rope, windows, rotated),
        windows=windows,
        attention_scale=scalar**-0.5 if latent is None else score_scale(config, latent),
        attention_softcap=score_cap,
        logit_softcap=logit_cap,
        embedding_scale=hidden_size**0.5 if family.scaled_embedding else None,
        qkv_bias=has_bias or (family.biases == "qkv" and config.flag("qkv_bias", True)),
        output_bias=has_bias and family.biases != "qkv_configured",
        mlp_bias=family.mlp_bias and config.flag("mlp_bias", False),
        tie_word_embeddings=config.flag("tie_word_embeddings", family.tied),
        eos_token_ids=_eos_token_ids(folder, config),
        dtype=_dtype(config),
        moe=read_moe(config, family, num_layers),
        query_scale=read_query_scale(config, family),
        latent=latent,
        is_text_part=text is not None,
        draft_layers=config.count("num_nextn_predict_layers", 0, most=MOST_LAYERS),
        quantization=_quantization(folder, config),
    )


def _architecture(config: JsonFields) -> str:
    named = config.texts("architectures") or ()
    model_type = config.text("model_type", "")
    name = find_architecture(named, model_type)
    if name is not None:
        return name
    shown = ", ".join(named) or model_type or "(none named)"
    raise UnsupportedModel(
        f"{config.where}: architecture {shown} is not supported; supported are"
        f" {', '.join(FAMILIES)}"
    )


def _refuse_unsupported(config: JsonFields) -> None:
    if config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel(f"{config.where}: use_bidirectional_attention is not supported")
    if config.raw("clip_qkv") is not None:
        raise UnsupportedModel(f"{config.where}: clip_qkv is not supported")
    if "auto_map" in config:
        _log.warning("config.json names custom code in auto_map; it is not run")


def _quantization(folder: Path, config: JsonFields) -> Announcement | None:
    name = next((each for each in ANNOUNCED if config.raw(each) is not None), ANNOUNCED[0])
    values, where = config.raw(name), f"{config.where}: {name}"
    if has_gguf(folder):
        # A GGUF file announces its own types, so this announcement is of other weights.
        if values is not None:
            raise SpecError(f"{where} is of other weights than the gguf file's; remove it")
        try:
            return announcement(read_files(folder))
        except LoadError as error:
            raise SpecError(str(error)) from error
    if values is None:
        return None
    if not isinstance(values, dict):
        raise SpecError(f"{where} must be an object, not {type(values).__name__}")
    return Announcement(values, where)


def _activation(config: JsonFields, family: Family) -> str:
    named = config.text("hidden_activation", config.text("hidden_act", family.activation))
    if named not in ACTIVATIONS:
        raise UnsupportedModel(
            f"{config.where}: activation {named!r} is not supported; supported are"
            f" {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[named]


def _eos_token_ids(folder: Path, config: JsonFields) -> tuple[int, ...]:
    ids = set(config.indices("eos_token_id"))
    if (folder / "generation_config.json").exists():
        # Chat models often name the end of a turn there only.
        ids.update(JsonFields.of_file(folder / "generation_config.json").indices("eos_token_id"))
    return tuple(sorted(ids))


def _dtype(config: JsonFields) -> str:
    named = config.text("dtype", config.text("torch_dtype", "float32"))
    named = named.removeprefix("torch.")
    if named not in DTYPES:
        raise SpecError(
            f"{config.where}: weights of {named} are not supported; supported are"
            f" {', '.join(DTYPES)}"
        )
    return named
