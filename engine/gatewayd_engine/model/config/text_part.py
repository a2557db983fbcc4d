"""The language model within a multimodal checkpoint, whose settings and tensors are nested."""

from __future__ import annotations

from collections.abc import Mapping

from gatewayd_engine.model.config.families import MODEL_TYPES
from gatewayd_engine.model.json_fields import JsonFields

ARCHITECTURES = frozenset(
    f"{name}ForConditionalGeneration" for name in ("Gemma3", "Llama4", "Mistral3")
)
TEXT = "text_config"
"""Key of the language model's settings."""
_PREFIXES = {
    # As transformers 5 writes them, and as releases do.
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
}
ANNOUNCED = ("quantization_config", "compression_config")
"""Keys of config.json that describe the quantization; the second is that of sparseml's releases."""
_SHARED = (
    "eos_token_id",
    "dtype",
    "torch_dtype",
    *ANNOUNCED,
)
"""Settings that checkpoints have beside the language model's, for all parts."""
_TIED = "tie_word_embeddings"
_GEMMA3 = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
}
_DEFAULTS: Mapping[str, Mapping[str, object]] = {"gemma3_text": _GEMMA3}
"""Sizes that releases leave out, as transformers fills them in, by ``model_type``."""


def text_part(config: JsonFields) -> JsonFields | None:
    """Return the settings of a multimodal checkpoint's language model.

    None for other checkpoints, and where the language model has no supported architecture.

    Raises:
        SpecError: the settings are no object.
    """
    named = config.texts("architectures") or ()
    nested = config.inner(TEXT) if ARCHITECTURES.intersection(named) else None
    if nested is None:
        return None
    model_type = nested.text("model_type", "")
    if model_type not in MODEL_TYPES:
        return None
    shared = {key: config.raw(key) for key in _SHARED if config.raw(key) is not None}
    fixed: dict[str, object] = {"architectures": [MODEL_TYPES[model_type]]}
    if config.raw(_TIED) is not None:
        # As in transformers: the outer model has the head, whatever the inner settings say.
        fixed[_TIED] = config.raw(_TIED)
    for key in ANNOUNCED:
        if key in shared:
            shared[key] = _renamed(shared[key])
    return nested.over({**_DEFAULTS.get(model_type, {}), **shared}, fixed)


def _renamed(value: object) -> object:
    """Return a description with the language model's own names of modules, in patterns too."""
    match value:
        case str():
            for prefix, own in _PREFIXES.items():
                stem, short = prefix.removesuffix("."), own.removesuffix(".")
                for old, new in ((stem, short), (stem.replace(".", r"\."), short)):
                    value = value.replace(old, new)
            return value
        case list():
            return [_renamed(item) for item in value]
        case dict():
            return {_renamed(key): _renamed(item) for key, item in value.items()}
        case _:
            return value


def text_tensor(name: str) -> str | None:
    """Return the language model's own name of a tensor; None for one of another part."""
    for prefix, own in _PREFIXES.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return None
