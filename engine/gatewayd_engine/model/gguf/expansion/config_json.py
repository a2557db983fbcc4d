"""``config.json`` of a model, from the metadata and the tensors of its GGUF files."""

from __future__ import annotations

from typing import Any

from gatewayd_engine.model.config.context import MOST_CONTEXT
from gatewayd_engine.model.config.families import FAMILIES, MODEL_TYPES, Family
from gatewayd_engine.model.gguf.expansion.expert_fields import expert_values
from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.gguf.expansion.latent_fields import latent_model_type, latent_values
from gatewayd_engine.model.gguf.expansion.rope_fields import RopeFields
from gatewayd_engine.model.gguf.files import GgufFiles
from gatewayd_engine.model.gguf.names import (
    DEEPSEEK,
    GEMMA,
    GEMMA3,
    GLM,
    GLM_EXPERTS,
    GPT,
    LLAMA,
    LLAMA4,
    OLMO,
    OLMO_EXPERTS,
    PHI,
    QWEN2_EXPERTS,
    QWEN_EXPERTS,
    SMOLLM,
)
from gatewayd_engine.model.loading.safetensors_headers import LoadError

_MODEL_TYPES = {
    LLAMA: "llama",
    LLAMA4: "llama4_text",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    QWEN2_EXPERTS: "qwen2_moe",
    QWEN_EXPERTS: "qwen3_moe",
    GEMMA: "gemma2",
    GEMMA3: "gemma3_text",
    GLM: "glm4",
    GLM_EXPERTS: "glm4_moe",
    GPT: "gpt_oss",
    OLMO: "olmo2",
    OLMO_EXPERTS: "olmoe",
    PHI: "phi3",
    SMOLLM: "smollm3",
}
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_GEMMA_LARGEST = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the models of 27 billion parameters."""
_WINDOW = "attention.sliding_window"
_PATTERN = f"{_WINDOW}_pattern"
PATTERNS = frozenset(f"{architecture}.{_PATTERN}" for architecture in (GEMMA3, OLMO))
"""Keys of arrays that tell which layers have a sliding window."""
_WINDOWED = ("mistral", "mixtral", "gemma2", "gemma3_text", "olmo3", "phi3", "gpt_oss")


def config_json(files: GgufFiles, ends: tuple[int, ...]) -> dict[str, Any]:
    """Return the contents of a config.json.

    Args:
        files: headers of the model.
        ends: ids of the tokens that end a generation.

    Raises:
        LoadError: the metadata lacks a value, or has one that cannot be served.
    """
    return _Config(files).values(ends)


class _Config:
    """Reader of the keys of one architecture."""

    def __init__(self, files: GgufFiles) -> None:
        self._files = files
        self._fields = GgufFields(files.metadata, files.first.name)
        self._prefix = files.architecture
        self._rope = RopeFields(files, self._fields)

    def values(self, ends: tuple[int, ...]) -> dict[str, Any]:
        heads = self._fields.size(self._key("attention.head_count"))
        hidden = self._fields.size(self._key("embedding_length"))
        model_type = self._model_type()
        family = FAMILIES[MODEL_TYPES[model_type]]
        latent = latent_values(self._fields, self._files) if self._prefix == DEEPSEEK else {}
        head_dim = latent.get("head_dim") or self._fields.size(
            self._key("attention.key_length"), max(1, hidden // heads)
        )
        values: dict[str, Any] = {
            "architectures": [MODEL_TYPES[model_type]],
            "model_type": model_type,
            "vocab_size": self._vocab_size(),
            "hidden_size": hidden,
            "intermediate_size": self._fields.size(self._key("feed_forward_length")),
            **self._layers(),
            "num_attention_heads": heads,
            "num_key_value_heads": self._fields.size(self._key("attention.head_count_kv"), heads),
            "head_dim": head_dim,
            "max_position_embeddings": self._context_len(family),
            "rms_norm_eps": self._fields.number(self._key("attention.layer_norm_rms_epsilon")),
            "rope_theta": self._rope.theta(family.rope_theta),
            "tie_word_embeddings": _HEAD not in self._files.tensors,
            "attention_bias": self._has("self_attn.q_proj.bias"),
            "qkv_bias": self._has("self_attn.q_proj.bias"),
            "use_qk_norm": self._has("self_attn.q_norm.weight"),
            "mlp_bias": self._has("mlp.up_proj.bias"),
            "eos_token_id": list(ends) or None,
            "torch_dtype": self._dtype(),
            **self._rope.values(head_dim),
            **self._windows(model_type),
            **expert_values(self._fields, self._prefix, model_type),
            **latent,
        }
        if model_type in _GEMMA_LARGEST:
            values |= self._gemma(model_type, values)
        return values

    def _key(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def _has(self, name: str) -> bool:
        return f"model.layers.0.{name}" in self._files.tensors

    def _model_type(self) -> str:
        # Mistral and Mixtral have the architecture of Llama, and what differs is in other keys.
        if self._prefix == LLAMA:
            if self._fields.size(self._key("expert_count"), 0, least=0):
                return "mixtral"
            if self._key(_WINDOW) in self._fields:
                return "mistral"
        if self._prefix == DEEPSEEK:
            return latent_model_type(self._fields, self._files)
        if self._prefix == OLMO and self._key(_WINDOW) in self._fields:
            return "olmo3"
        return _MODEL_TYPES[self._prefix]

    def _layers(self) -> dict[str, int]:
        # Files count layers that predict further tokens, too.
        key = self._key("block_count")
        all_layers = self._fields.size(key)
        drafts = self._fields.size(self._key("nextn_predict_layers"), 0, least=0)
        if drafts >= all_layers:
            raise self._fields.wrong(key, f"above {drafts}, the layers for further tokens")
        return {"num_hidden_layers": all_layers - drafts, "num_nextn_predict_layers": drafts}

    def _vocab_size(self) -> int:
        if _EMBEDDING not in self._files.tensors:
            raise LoadError(f"{self._fields.where} lacks the tensor token_embd.weight")
        _, table = self._files.tensors[_EMBEDDING]
        return table.shape[0]

    def _context_len(self, family: Family) -> int:
        key = self._key("context_length")
        length = self._fields.size(key)
        # Tables of positions are made before anything else would show that it is wrong. Of families
        # that state more than is served, the reader of config.json limits it.
        if length > MOST_CONTEXT and family.most_context is None:
            raise self._fields.wrong(key, f"an integer from 1 to {MOST_CONTEXT}")
        return length

    def _dtype(self) -> str:
        # What activations are on a GPU; float32 only where the weights are.
        types = {tensor.type for _, tensor in self._files.tensors.values()}
        return "float32" if types == {"F32"} else "bfloat16"

    def _windows(self, model_type: str) -> dict[str, Any]:
        if model_type not in _WINDOWED:
            return {}
        values: dict[str, Any] = {"sliding_window": self._fields.optional_size(self._key(_WINDOW))}
        if self._key(_PATTERN) in PATTERNS:
            num_layers = self._fields.size(self._key("block_count"))
            pattern = self._fields.numbers(self._key(_PATTERN), num_layers)
            if pattern is not None:
                kinds = ("full_attention", "sliding_attention")
                values["layer_types"] = [kinds[one != 0] for one in pattern]
        if model_type == "gemma3_text":
            for key in ("rope.freq_base_swa", "rope.local.freq_base"):
                if self._key(key) in self._fields:
                    values["rope_local_base_freq"] = self._fields.number(self._key(key))
        return values

    def _gemma(self, model_type: str, values: dict[str, Any]) -> dict[str, Any]:
        # The file does not tell by what scores are scaled. All sizes but the largest, which is the
        # only one of so many layers, scale them by the size of a head.
        scalar = values["head_dim"]
        if values["num_hidden_layers"] == _GEMMA_LARGEST[model_type]:
            scalar = values["hidden_size"] // values["num_attention_heads"]
        return {
            "query_pre_attn_scalar": scalar,
            **{
                key: self._fields.optional_number(self._key(key))
                for key in ("attn_logit_softcapping", "final_logit_softcapping")
            },
        }
