"""Oracle of tokens: what transformers generates from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def theirs(folder: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens, end tokens as all others."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        made = model.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=None)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens
