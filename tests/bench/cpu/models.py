"""Models of the CPU comparison: one file each, which both servers read.

They are made once, in ``.cache/llama.cpp``: converted and quantized by llama.cpp's own tools.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from gatewayd_engine.model.embedded import folder
from tests.bench import llama_cpp
from tests.bench.cpu import random_llama

NANO, BILLION = "nano", "1b"
MODELS = (NANO, BILLION)
FLOATS = ("f32", "f16", "bf16")
QUANTIZED = {"q8_0": "Q8_0", "q4_0": "Q4_0", "q4_k": "Q4_K", "q6_k": "Q6_K"}
"""Schemes, and llama.cpp's names of them."""
SCHEMES = (*FLOATS, *QUANTIZED)
_SHORT_ROWS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up")
"""Matrices of nano whose rows of 384 are no whole blocks of Q4_K and Q6_K."""


@dataclass(frozen=True, slots=True)
class ServedFile:
    """Weights of a model in one scheme.

    Attributes:
        model: one of ``MODELS``.
        scheme: one of ``SCHEMES``.
        cache: llama.cpp's folder.
    """

    model: str
    scheme: str
    cache: Path = llama_cpp.CACHE

    @property
    def folder(self) -> Path:
        """Of the file, and of what gatewayd needs beside it."""
        return self.cache / self.model / self.scheme

    @property
    def gguf(self) -> Path:
        """The file itself."""
        return self.folder / "model.gguf"

    @property
    def title(self) -> str:
        """How tables call it, such as ``1B Q8_0``."""
        name = self.scheme if self.scheme in FLOATS else QUANTIZED[self.scheme]
        return f"{self.model.upper() if self.model == BILLION else self.model} {name}"

    @property
    def serves_embedded(self) -> bool:
        """Whether gatewayd serves the model that it contains, and not this file of it."""
        return self.model == NANO and self.scheme == "f32"

    def options(self) -> list[str]:
        """Options of ``gatewayd serve``."""
        return [] if self.serves_embedded else ["--model", str(self.folder)]

    def environment(self) -> dict[str, str]:
        """Settings of gatewayd: what is quantized in the file is multiplied so."""
        return {} if self.serves_embedded else {"GATEWAYD_QUANTIZER__GGUF__PACKED": "true"}

    def make(self) -> None:
        """Make the file and the files beside it, unless they are there.

        Raises:
            subprocess.CalledProcessError: one of llama.cpp's tools fails.
            OSError: a tool is missing, or the disk is full.
        """
        if self.gguf.exists():
            return
        original = self._original()
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in random_llama.SIDE_FILES:
            shutil.copy(original / name, self.folder)
        # Under another name until it is whole, so that a cut leaves no half of a model.
        part = self.gguf.with_suffix(".part")
        if self.scheme in FLOATS:
            llama_cpp.convert(original, part, self.scheme, self.cache)
        else:
            floats = ServedFile(self.model, "bf16" if self.model == BILLION else "f32", self.cache)
            floats.make()
            kind = QUANTIZED[self.scheme]
            llama_cpp.quantize(floats.gguf, part, kind, *self._exceptions(), cache=self.cache)
        part.rename(self.gguf)

    def _original(self) -> Path:
        if self.model == NANO:
            return folder()
        found = self.cache / self.model / "hf"
        if not found.exists():
            part = found.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            random_llama.write(part)
            part.rename(found)
        return found

    def _exceptions(self) -> list[str]:
        if self.model == BILLION or not self.scheme.endswith("_k"):
            return []
        types = [word for name in _SHORT_ROWS for word in ("--tensor-type", f"{name}=q8_0")]
        return ["--token-embedding-type", "q8_0", *types]
