"""Rotary embedding settings of a config.json, from the metadata of a GGUF file."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.gguf.files import GgufFiles
from gatewayd_engine.model.gguf.header import Tensor
from gatewayd_engine.model.gguf.names import DEEPSEEK, GLM, GLM_EXPERTS, GPT, LLAMA4
from gatewayd_engine.model.loading.safetensors_headers import LoadError

_LLAMA3_LENGTH = 8192
"""Context length of Llama 3 before it was stretched; files have the stretched factors alone."""
_LOW, _HIGH, _HIGH_4 = 1.0, 4.0, 1.0
"""Factors of low and high frequencies of Llama 3, and of the high ones of Llama 4."""
_TOLERANCE = 1e-3
_MAGNITUDES = ("attn_factor", "yarn_ext_factor")
"""Settings of yarn that released models leave at one."""
_PLAIN_THETA = 10_000.0


class RopeFields:
    """Reader of the settings of one file.

    Args:
        files: headers of the model.
        fields: metadata of the first file.

    All methods raise LoadError for a value that is missing or cannot be served.
    """

    def __init__(self, files: GgufFiles, fields: GgufFields) -> None:
        self._files = files
        self._fields = fields
        self._prefix = files.architecture

    def theta(self, default: float) -> float:
        """Return the base of the wavelengths; ``default`` is that of the family."""
        # Ollama's converter has names of its own for Gemma 3.
        key = self._key("rope.global.freq_base")
        if key in self._fields:
            return self._fields.number(key)
        # llama.cpp takes 10,000 for all; models that have another would answer wrongly.
        is_plain = default == _PLAIN_THETA
        return self._fields.number(self._key("rope.freq_base"), default if is_plain else None)

    def values(self, head_dim: int) -> dict[str, Any]:
        """Return the fields of a config.json, without the base."""
        rotated = self._fields.size(self._key("rope.dimension_count"), head_dim)
        values: dict[str, Any] = {}
        if rotated != head_dim or self._prefix in (GLM, GLM_EXPERTS):
            values["partial_rotary_factor"] = rotated / head_dim
        kind = self._fields.text(self._key("rope.scaling.type"), "none")
        if self._key("rope.scale_linear") in self._fields and kind == "none":
            kind = "linear"
        if self._files.frequencies is not None:
            if scaling := self._llama3(*self._files.frequencies, rotated):
                values["rope_scaling"] = scaling
            return values
        match kind:
            case "none":
                return values
            case "linear":
                factor = self._fields.number(
                    self._key("rope.scaling.factor"),
                    self._fields.optional_number(self._key("rope.scale_linear")),
                )
                return values | {"rope_scaling": {"rope_type": "linear", "factor": factor}}
            case "yarn":
                return values | {"rope_scaling": self._yarn()}
        raise LoadError(
            f"{self._fields.where}: {self._key('rope.scaling.type')} is {kind!r}; read from a GGUF"
            " file are none, linear and yarn, so serve a folder with the file and the model's"
            " config.json and tokenizer.json"
        )

    def _yarn(self) -> dict[str, Any]:
        key = self._key("rope.scaling.original_context_length")
        scaling: dict[str, Any] = {
            "rope_type": "yarn",
            "factor": self._fields.number(self._key("rope.scaling.factor")),
            "original_max_position_embeddings": self._fields.size(key),
        }
        if self._prefix == GPT:
            scaling["truncate"] = False  # as its releases say; files do not tell
        for name in _MAGNITUDES:
            key = self._key(f"rope.scaling.{name}")
            # They scale attention in ways that config.json has no words for.
            if self._fields.optional_number(key) not in (None, 1.0):
                raise self._fields.wrong(key, "1")
        # As the converter writes config.json's.
        key = self._key("rope.scaling.yarn_attn_factor")
        if key in self._fields:
            scaling["attention_factor"] = self._fields.number(key)
        key = self._key("rope.scaling.yarn_log_multiplier")
        if self._prefix == DEEPSEEK and key in self._fields:
            # A tenth of it, in float32. Files do not tell mscale, which is the same in releases.
            magnitude = round(10 * self._fields.number(key), 6)
            scaling |= {"mscale": magnitude, "mscale_all_dim": magnitude}
        for name in ("beta_fast", "beta_slow"):
            number = self._fields.optional_number(self._key(f"rope.scaling.yarn_{name}"))
            if number is not None:
                scaling[name] = number
        return scaling

    def _llama3(self, path: Path, tensor: Tensor, rotated: int) -> dict[str, Any] | None:
        """Return the scaling whose frequency factors the file has; None if they are all one."""
        name = "rope_freqs.weight"
        if tensor.type != "F32" or tensor.shape != (rotated // 2,):
            raise LoadError(
                f"{path.name}: {name} is {tensor.type} {list(tensor.shape)}, not F32"
                f" [{rotated // 2}]"
            )
        with path.open("rb") as file:
            file.seek(tensor.begin)
            data = file.read(tensor.nbytes)
        if len(data) < tensor.nbytes:
            raise LoadError(f"{path.name}: {name} is cut off")
        factors = struct.unpack(f"<{rotated // 2}f", data)
        if not all(math.isfinite(one) and one > 0 for one in factors):
            raise LoadError(f"{path.name}: {name} has a factor that is not above 0")
        factor = max(factors)
        if all(one == 1.0 for one in factors):
            return None
        theta = self._fields.number(self._key("rope.freq_base"), 10_000.0)
        high = _HIGH_4 if self._prefix == LLAMA4 else _HIGH
        expected = [_stretch(theta ** (2 * i / rotated), factor, high) for i in range(rotated // 2)]
        if all(
            math.isclose(one, other, rel_tol=_TOLERANCE)
            for one, other in zip(factors, expected, strict=True)
        ):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": high,
                "original_max_position_embeddings": _LLAMA3_LENGTH,
            }
        raise LoadError(
            f"{path.name}: {name} has other factors than Llama 3's; serve a folder with the file"
            " and the model's config.json and tokenizer.json"
        )

    def _key(self, name: str) -> str:
        return f"{self._prefix}.{name}"


def _stretch(per_radian: float, factor: float, high: float) -> float:
    """Return what llama3's scaling divides a frequency by.

    Args:
        per_radian: positions per radian, the frequency's inverse.
        factor: of the lowest frequencies.
        high: factor of high frequencies.
    """
    turns = _LLAMA3_LENGTH / (2 * math.pi * per_radian)
    if turns > high:
        return 1.0
    if turns <= _LOW:
        return factor
    smooth = (turns - _LOW) / (high - _LOW)
    return 1.0 / ((1 - smooth) / factor + smooth)
