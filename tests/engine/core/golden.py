"""Recorded greedy tokens of transformers, by checkpoint, version and prompt.

A key that is not on record is computed, so that another processor's random weights or another
transformers cost time and nothing else. ``make nightly`` computes all of them again and compares;
``GATEWAYD_WRITE_GOLDEN=1`` in a run of one process writes what was missing.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.random_cases import IS_NIGHTLY

_RECORD = Path(__file__).with_suffix(".json")
_IS_WRITTEN = "GATEWAYD_WRITE_GOLDEN" in os.environ


class GoldenModel:
    """A checkpoint's greedy continuations by transformers, in float32."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known = _record().setdefault(_key(folder), {})

    @functools.cached_property
    def model(self) -> Any:
        """The checkpoint in transformers."""
        import torch
        import transformers

        auto: Any = transformers.AutoModelForCausalLM
        return auto.from_pretrained(self.folder, dtype=torch.float32).eval()

    def continued(self, prompt: Sequence[int], new: int, eos: Sequence[int]) -> list[int]:
        """At most ``new`` tokens, without an end token."""
        text = json.dumps([list(prompt), new, list(eos)])
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        known = self._known.get(key)
        if known is not None and not IS_NIGHTLY:
            return known
        tokens = self._computed(prompt, new, eos)
        assert known is None or tokens == known, "not what is on record"
        self._known[key] = tokens
        if _IS_WRITTEN:
            _write()
        return tokens

    def _computed(self, prompt: Sequence[int], new: int, eos: Sequence[int]) -> list[int]:
        import torch

        with torch.inference_mode():
            output = self.model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=list(eos),
                pad_token_id=0,
            )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        ends = [i for i, token in enumerate(tokens) if token in eos]
        return tokens[: ends[0]] if ends else tokens


@functools.cache
def golden_model(folder: Path) -> GoldenModel:
    """One for each checkpoint of a run."""
    return GoldenModel(folder)


@functools.cache
def _record() -> dict[str, dict[str, list[int]]]:
    made: dict[str, dict[str, list[int]]] = json.loads(_RECORD.read_text("utf-8"))
    return made


def _key(folder: Path) -> str:
    digest = hashlib.sha256()
    for shard in sorted(folder.glob("*.safetensors")):
        digest.update(shard.read_bytes())
    digest.update(_configuration(folder))
    return f"transformers {importlib.metadata.version('transformers')} {digest.hexdigest()[:16]}"


def _configuration(folder: Path) -> bytes:
    return json.dumps(json.loads((folder / "config.json").read_text()), sort_keys=True).encode()


def _write() -> None:
    models = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(key)}: {json.dumps(known[key])}" for key in sorted(known))
        + "\n}"
        for name, known in sorted(_record().items())
        if known
    )
    _RECORD.write_text("{" + ",\n".join(models) + "}\n", "utf-8")
