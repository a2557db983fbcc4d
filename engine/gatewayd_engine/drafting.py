"""What drafters get of models: the served one, and smaller ones beside it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.batch import DraftLines, gather
from gatewayd_engine.device.row_model import PAGE_SIZE
from gatewayd_engine.kv.memory import Memory, mib
from gatewayd_engine.kv.pool import KvPool, page_bytes
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loader import load
from gatewayd_engine.model.parts import Parts
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.pace import Pace
from gatewayd_engine.rows import Rows
from gatewayd_hooks.speculation import DraftModel

_log = logging.getLogger(__name__)

_FEW = 8
RowModelT = TypeVar("RowModelT")


class Target:
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


class RowModel:
    """See ``DraftModel``: a decoder with pages of its own for each row.

    Args:
        decoder: the model.
        max_running: rows.
        max_model_len: tokens of a row.
        pace: chooses threads for its steps.
    """

    def __init__(self, decoder: Decoder, max_running: int, max_model_len: int, pace: Pace) -> None:
        self._pace = pace
        self.vocab_size = decoder.spec.vocab_size
        self.max_model_len = max_model_len
        self._decoder = decoder
        self._rows = Rows(max_running, max_model_len, PAGE_SIZE)
        pages = self._rows.block_table.shape[1]
        self._rows.block_table[:] = np.arange(max_running * pages).reshape(max_running, pages)
        shape = decoder.spec.attention
        pool = KvPool(shape, max_running * pages, PAGE_SIZE, decoder.dtype, str(decoder.device))
        self._attention = ReferenceAttention(shape, pool, max_running, pool.data.nbytes)

    @torch.inference_mode()
    def extend(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        """See ``DraftModel``."""
        try:
            return self._extend(rows, starts, counts, tokens)
        except BaseException:
            # Whoever has it next begins each row anew, and finds no half a copy.
            self._attention.forget()
            raise

    def _extend(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        ends = starts + counts
        for i, row in enumerate(rows.tolist()):
            self._rows.tokens[row, starts[i] : ends[i]] = tokens[i, : counts[i]]
        lines = np.arange(len(rows), dtype=np.int32)
        # A few tokens at once decode like one with drafts behind it: their contexts stay dense.
        more = np.where(counts <= _FEW, counts - 1, 0)
        batch = gather(
            self._rows,
            lines,
            rows.astype(np.int32),
            rows,
            starts.astype(np.int32),
            (counts - more).astype(np.int32),
            ends.astype(np.int32),
            _chains(tokens, more) if more.any() else None,
        )
        self._pace.begin(len(batch.ids))
        self._attention.plan(batch)
        hidden = self._decoder.hidden(
            torch.from_numpy(batch.ids), torch.from_numpy(batch.positions), self._attention
        )
        logits = self._decoder.logits(hidden[torch.from_numpy(batch.last)])
        self._pace.end()
        return logits[torch.from_numpy(np.argsort(batch.slots))]


def _chains(tokens: NDArray[np.int32], counts: NDArray[np.int64]) -> DraftLines:
    """What follows the first token of each row, as drafts that are known to be right."""
    return DraftLines(
        counts,
        tokens[:, 1 : 1 + int(counts.max())],
        None,
        None,
        np.full(len(counts), -1, np.int64),
    )


class Loaded:
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


def row_model(decoder: Decoder, max_running: int, max_model_len: int) -> RowModel:
    """One that leaves the threads of its steps as they are."""
    return RowModel(decoder, max_running, max_model_len, Pace(1, lambda count: None))


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
    memory: Memory | None = None,
    parts: Parts | None = None,
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
        f"the draft model in {folder} needs {mib(wanted * each)} for keys and values, "
        f"{max_running} sequences of {length} tokens, and {free} are free beside the KV pool"
    )
    if not count:
        raise ValueError(
            f"{text}: swap to none first if a drafter has some, or restart with [engine] "
            f"draft_memory at {mib(wanted * each)}, or less for shorter contexts"
        )
    if count < wanted:
        length = count * PAGE_SIZE
        _log.warning("%s: it guesses for sequences of up to %d tokens", text, length)
    try:
        decoder = load(Path(folder), spec, dtype, device, lambda fraction: None, parts)
        model = make(decoder, max_running, length)
    except BaseException:
        memory.give_back(taken)
        raise
    weakref.finalize(model, memory.give_back, taken)
    _log.info("the draft model in %s has %s for keys and values", folder, mib(taken))
    return model
