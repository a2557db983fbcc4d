"""What drafters get of models: the served one, and smaller ones beside it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from gatewayd_engine.kv.memory_budget import MemoryBudget, mib
from gatewayd_engine.kv.pool import page_bytes
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.parts import LayerParts
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.runner.gpu.draft_model import PAGE_SIZE
from gatewayd_hooks.resources import DraftModel

_log = logging.getLogger(__name__)

RowModelT = TypeVar("RowModelT")


class DraftTarget:
    """See ``TargetModel``; empty until the model is loaded."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        self.hidden_size = hidden_size
        self.dtype = dtype
        self._decoder: Decoder | None = None

    def hold(self, decoder: Decoder) -> None:
        """The model is loaded."""
        self._decoder = decoder

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``TargetModel``."""
        return self._loaded().embed(ids)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ``TargetModel``."""
        return self._loaded().logits(hidden)

    def _loaded(self) -> Decoder:
        if self._decoder is None:
            raise RuntimeError("the model is not loaded yet")
        return self._decoder


class LoadedDraftModels:
    """Small models by folder: one that somebody has is not read again, nor needs memory twice.

    A drafter that takes the place of another finds in it what it has not computed itself, and
    begins each row anew.

    Args:
        load: reads one.
    """

    def __init__(self, load: Callable[[str], DraftModel]) -> None:
        self._load = load
        self._models: weakref.WeakValueDictionary[Path, DraftModel] = weakref.WeakValueDictionary()

    def __call__(self, folder: str) -> DraftModel:
        """The model of a folder."""
        key = Path(folder).resolve()
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = self._load(folder)
        return model


def bytes_beside(folder: Path, max_running: int, max_model_len: int, dtype: torch.dtype) -> int:
    """What the keys and values of a small model take, for whole contexts of all rows.

    Raises:
        SpecError: the checkpoint cannot be used.
    """
    spec = read_spec(folder, None)
    pages = -(-min(spec.max_model_len, max_model_len) // PAGE_SIZE)
    return pages * max_running * page_bytes(spec.attention, PAGE_SIZE, dtype)


def weights_beside(folder: Path) -> int:
    """Bytes of the weights in a folder, as its files hold them; 0 if there are none."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def load_beside(
    folder: str,
    max_running: int,
    max_model_len: int,
    dtype: torch.dtype,
    device: str,
    make: Callable[[Decoder, int, int], RowModelT],
    memory: MemoryBudget | None = None,
    parts: LayerParts | None = None,
) -> RowModelT:
    """Load a small model to guess for a larger one.

    Where there is too little memory for whole contexts its contexts are shorter.

    Args:
        folder: its checkpoint.
        max_running: rows of the engine.
        max_model_len: tokens that a sequence of the engine may reach.
        dtype: of its weights.
        device: where it goes.
        make: of its decoder, how many rows and how many tokens of a row.
        memory: what its keys and values are taken from while it lives; None for no limit.
        parts: of its decoder; None for those of a CPU.

    Raises:
        SpecError, LoadError: the checkpoint cannot be used.
        ValueError: there is not even memory for a page of each row.
    """
    spec = read_spec(Path(folder), None)
    length = min(spec.max_model_len, max_model_len)
    if memory is None:
        decoder = load(Path(folder), spec, dtype, device, lambda fraction: None, parts)
        return make(decoder, max_running, length)
    each = max_running * page_bytes(spec.attention, PAGE_SIZE, dtype)
    wanted = -(-length // PAGE_SIZE)
    free = mib(memory.free)
    count = memory.take(each, wanted)
    taken = count * each
    text = (
        f"the draft model in {folder} needs {mib(wanted * each)} of KV cache, "
        f"{max_running} sequences of {length} tokens, and {free} are free outside the KV pool"
    )
    if not count:
        raise ValueError(
            f"{text}: swap to none first if a drafter has some, or restart with [engine] "
            f"draft_memory at {mib(wanted * each)}, or less for shorter contexts"
        )
    if count < wanted:
        length = count * PAGE_SIZE
        _log.warning("%s: speculating for sequences of up to %d tokens only", text, length)
    try:
        decoder = load(Path(folder), spec, dtype, device, lambda fraction: None, parts)
        model = make(decoder, max_running, length)
    except BaseException:
        memory.give_back(taken)
        raise
    weakref.finalize(model, memory.give_back, taken)
    _log.info("draft model %s: %s of KV cache", folder, mib(taken))
    return model
