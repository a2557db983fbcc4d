"""Resources passed to a strategy's ``open``: sizes, limits, models for drafters, a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


class TargetModel(Protocol):
    """Parts of the target model that a drafter may use, once it is loaded.

    Attributes:
        hidden_size: of its hidden states.
        dtype: of its hidden states.
    """

    hidden_size: int
    dtype: torch.dtype

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the input embeddings ``[n, hidden_size]`` of token ids ``[n]``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits, float32 ``[n, vocab_size]``, of hidden states ``[n, hidden_size]``."""


class Heads(NamedTuple):
    """Small networks trained on the hidden states of a model.

    Attributes:
        tensors: their weights by name, in the model's dtype.
        facts: content of ``heads.json``.
    """

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


class DraftModel(Protocol):
    """Smaller model for drafting, with KV storage for each row.

    Attributes:
        vocab_size: of its logits.
        max_model_len: maximum of tokens of a row; fewer than the engine's if memory is short.
    """

    vocab_size: int
    max_model_len: int

    def extend(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        """Compute tokens of some rows after those computed before.

        Args:
            rows: shape ``[n]``.
            starts: computed tokens of each to retain; later ones are discarded, shape ``[n]``.
            counts: tokens to compute, at least 1, shape ``[n]``.
            tokens: their ids, of each row the first ``counts``, shape ``[n, most]`` with ``most``
                at least the largest count.

        Returns:
            Logits after the last token of each row, float32, shape ``[n, vocab_size]``.
        """


class RunPadded(Protocol):
    """Launches kernels over the tensors of some rows; see ``CaptureLaunches``."""

    def __call__(self, num_lines: int, /) -> None:
        """Launch for the first rows of the tensors.

        If captured, the next larger captured size is replayed, which also computes rows after
        those; otherwise exactly that many rows are launched, kernel by kernel.

        Args:
            num_lines: number of rows, from 1 to ``max_running``.
        """


class CaptureLaunches(Protocol):
    """Captures a drafter's GPU kernels in CUDA graphs, so that drafting takes one launch.

    It must be called in ``open``. The engine runs each size once, and captures it, while the model
    is loaded and nothing else runs. In a drafter that is swapped in later, for sizes whose capture
    failed, and with ``[engine] capture = "off"``, kernels are launched one by one.
    """

    def __call__(
        self, launches: Callable[[int], None], name: str, logits_per_line: int
    ) -> RunPadded:
        """Register launches to be captured for some numbers of rows: 1, 2, 4, 8, ...

        Args:
            launches: launches the computation for that many rows, and may use ``resources.target``.
                It reads and writes the first rows of persistent tensors allocated in ``open``;
                tensors that it allocates itself may be overwritten once it has returned. Shapes
                depend on the number alone, and the host reads no tensor. It is called under
                ``torch.inference_mode`` with the tensors as ``open`` left them, and in a replay,
                rows after the requested ones have arbitrary earlier content: both must be harmless.
            name: of what is captured, for the log.
            logits_per_line: rows of ``resources.target.logits`` that one row computes at a time, at
                least 1. Sizes with more than 256 of them are not captured: they take longer to
                compute than to launch, and their memory is not accounted for.

        Returns:
            Function that launches them; usable from the first ``admit`` on.
        """


@dataclass(frozen=True, slots=True)
class PenaltyColumns:
    """Token history and penalties of rows.

    Attributes:
        seen: tokens of prompt and output, bool, shape ``[seen lines, vocab]``.
        seen_line: int64, shape ``[rows]``: each row's line of ``seen``, -1 for none.
        counts: occurrences of each token in the output, int32, shape ``[count lines, vocab]``.
        count_line: int64, shape ``[rows]``: each row's line of ``counts``, -1 for none.
        repetition: divides positive logits of seen tokens and multiplies others, float32
            ``[rows]``.
        frequency: subtracted for each occurrence, float32 ``[rows]``.
        presence: subtracted once, float32 ``[rows]``.
    """

    seen: torch.Tensor
    seen_line: torch.Tensor
    counts: torch.Tensor
    count_line: torch.Tensor
    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor


class Penalise(Protocol):
    """Penalizes seen tokens in one pass of a device; see ``EngineResources``."""

    def __call__(
        self,
        logits: torch.Tensor,
        index: torch.Tensor,
        rows: torch.Tensor,
        columns: PenaltyColumns,
    ) -> None:
        """Apply the repetition, then the frequency and presence penalties, in place.

        Args:
            logits: as passed to ``LogitsProcessor.apply``.
            index: which rows of ``logits`` to change, int64, shape ``[n]``; on the CPU.
            rows: the batch row of each of those, int64, shape ``[n]``; on the CPU.
            columns: token history of the rows, on the device.
        """


@dataclass(frozen=True, slots=True)
class KvShape:
    """Attention parameters of a model that concern its keys and values.

    Attributes:
        num_layers: layers with attention.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides ``num_heads``.
        head_dim: size of a head.
        scale: factor on the scores before softmax.
        softcap: bounds scores, None for none.
        windows: per layer, the size of the sliding window in tokens; 0 for full attention.
        values_are_keys: whether the keys serve as values as well, as in latent attention; then one
            vector per token and head is stored.
        chunked: whether windows are fixed: a token attends to positions of its own chunk, which
            begins at a multiple of the window.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    windows: tuple[int, ...]
    values_are_keys: bool = False
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class EngineResources:
    """Fixed sizes of the engine, known once the model is loaded.

    Attributes:
        num_pages: pages of the KV pool that sequences can use.
        page_size: tokens per page.
        max_running: maximum of running sequences.
        max_batch_tokens: token budget of one step.
        max_model_len: tokens of the model's context.
        vocab_size: size of the logits' last dimension.
        eos_token_ids: the model's end tokens.
        device: ``cpu`` or ``cuda:N``.
        slots: capacity of the columns of ``QueueView``; they may grow later.
        folder: the model's checkpoint.
        target: the target model, for drafters; it is loaded after strategies are opened.
        load_model: loads another checkpoint, for drafters; raises ValueError for one that is not
            supported. Its KV storage is taken from the KV memory until the last reference to it is
            dropped; until then, callers with the same folder get the same model, and must not rely
            on any row's content.
        page_bytes: size of a page of the KV pool.
        replica: index of the daemon's engine, from 0.
        model: name of the engine's model where a daemon has several, each with engines from 0;
            empty for the first.
        read_heads: reads the trained networks of a folder, or with an empty name of the default one
            next to the model's, for the drafter of the given name; raises ValueError for those of
            another model.
        capture: registers a drafter's kernels to be compiled and captured at the start; None on a
            CPU.
        forced: returns the tokens that a row's logits processors force to come next, for drafters.
        penalise: kernel for penalties, for logits processors; None on a CPU.
        kv_shape: of the model's attention; None where not needed.
    """

    num_pages: int
    page_size: int
    max_running: int
    max_batch_tokens: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    device: str
    slots: int
    folder: str = ""
    page_bytes: int = 0
    replica: int = 0
    model: str = ""
    target: TargetModel | None = None
    load_model: Callable[[str], DraftModel] | None = None
    read_heads: Callable[[str, str], Heads] | None = None
    forced: Callable[[int], Sequence[int]] | None = None
    capture: CaptureLaunches | None = None
    penalise: Penalise | None = None
    kv_shape: KvShape | None = None


@dataclass(frozen=True, slots=True)
class GatewayResources:
    """Properties of the gateway process, for its strategies.

    Attributes:
        model: the served model's name.
        num_replicas: engine processes behind the gateway.
        chat_template: Jinja template of the model; empty if it has none.
    """

    model: str
    num_replicas: int
    chat_template: str = ""
