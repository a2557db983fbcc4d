"""Models for drafters: access to the served model, and small draft models."""

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
from gatewayd_engine.model.servable import ServableModel
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.runner.gpu.draft_model import PAGE_SIZE
from gatewayd_hooks.resources import DraftModel

_log = logging.getLogger(__name__)

RowModelT = TypeVar("RowModelT")


class DraftTarget:
    """The served model as drafters see it (``TargetModel``); empty until it is loaded."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        self.hidden_size = hidden_size
        self.dtype = dtype
        self._decoder: ServableModel | None = None

    def set_model(self, decoder: ServableModel) -> None:
        """Set the loaded model."""
        self._decoder = decoder

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``TargetModel``."""
        return self._loaded().embed(ids)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ``TargetModel``."""
        return self._loaded().logits(hidden)

    def _loaded(self) -> ServableModel:
        if self._decoder is None:
            raise RuntimeError("the model is not loaded yet")
        return self._decoder


class LoadedDraftModels:
    """Cache of draft models by folder: a model in use is not loaded twice.

    A drafter that replaces another reuses its model, and restarts each row.

    Args:
        load: loads the model of a folder.
    """

    def __init__(self, load: Callable[[str], DraftModel]) -> None:
        self._load = load
        self._models: weakref.WeakValueDictionary[Path, DraftModel] = weakref.WeakValueDictionary()

    def __call__(self, folder: str) -> DraftModel:
        """Return the model of a folder."""
        key = Path(folder).resolve()
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = self._load(folder)
        return model


def draft_bytes_needed(
    folder: Path, max_running: int, max_model_len: int, dtype: torch.dtype
) -> int:
    """Return the KV bytes of a draft model for full contexts of all rows.

    Raises:
        SpecError: the checkpoint cannot be used.
    """
    spec = read_spec(folder, None)
    pages = -(-min(spec.max_model_len, max_model_len) // PAGE_SIZE)
    return pages * max_running * page_bytes(spec.attention, PAGE_SIZE, dtype)


def draft_weight_bytes(folder: Path) -> int:
    """Return the file sizes of the weights in a folder; 0 if there are none."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def load_draft_model(
    folder: str,
    max_running: int,
    max_model_len: int,
    dtype: torch.dtype,
    device: str,
    make: Callable[[Decoder, int, int], RowModelT],
    memory: MemoryBudget | None = None,
    parts: LayerParts | None = None,
) -> RowModelT:
    """Load a draft model.

    If the memory is too small for full contexts, it drafts for shorter ones only.

    Args:
        folder: its checkpoint.
        max_running: rows of the engine.
        max_model_len: tokens that a sequence of the engine may reach.
        dtype: data type of its weights.
        device: device of its weights.
        make: builds the row model from the decoder, the number of rows and tokens per row.
        memory: budget that its KV cache is reserved from during its lifetime; None for no limit.
        parts: layer implementations of its decoder; None for those of a CPU.

    Raises:
        SpecError, LoadError: the checkpoint cannot be used.
        ValueError: there is not even memory for one page per row.
    """
    spec = read_spec(Path(folder), None)
    length = min(spec.max_model_len, max_model_len)
    if memory is None:
        decoder = load(Path(folder), spec, dtype, device, lambda fraction: None, parts)
        return make(decoder, max_running, length)
    each = max_running * page_bytes(spec.attention, PAGE_SIZE, dtype)
    wanted = -(-length // PAGE_SIZE)
    # For the message, before the reservation.
    free = mib(memory.free)
    count = memory.reserve(each, wanted)
    reserved = count * each
    text = (
        f"the draft model in {folder} needs {mib(wanted * each)} of KV cache, "
        f"{max_running} sequences of {length} tokens, and {free} are free outside the KV pool"
    )
    if not count:
        raise ValueError(
            f"{text}: swap to none first if another drafter uses it, or restart with [engine] "
            f"draft_memory at {mib(wanted * each)}, or less for shorter contexts"
        )
    if count < wanted:
        length = count * PAGE_SIZE
        _log.warning("%s: speculating for sequences of up to %d tokens only", text, length)
    try:
        decoder = load(Path(folder), spec, dtype, device, lambda fraction: None, parts)
        model = make(decoder, max_running, length)
    except BaseException:
        memory.release(reserved)
        raise
    # Drafters share the model, so the memory is released with the last reference to it.
    weakref.finalize(model, memory.release, reserved)
    _log.info("draft model %s: %s of KV cache", folder, mib(reserved))
    return model
