"""What the host hands to a strategy in ``open``: sizes, limits, models for drafters, a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


class TargetModel(Protocol):
    """What a drafter may use of the model it guesses for, once that is loaded.

    Attributes:
        hidden_size: of its hidden states.
        dtype: of its hidden states.
    """

    hidden_size: int
    dtype: torch.dtype

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Input embeddings ``[n, hidden_size]`` of token ids ``[n]``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the vocabulary, float32 ``[n, vocab_size]``, of ``[n, hidden_size]``."""


class Heads(NamedTuple):
    """Small networks that were trained on the hidden states of a model.

    Attributes:
        tensors: their weights by name, in the model's type of numbers.
        facts: what ``heads.json`` says of them.
    """

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


class DraftModel(Protocol):
    """Another, smaller model, with a place for each row's keys and values.

    Attributes:
        vocab_size: of its logits.
        max_model_len: tokens that a row can have; fewer than the engine's where memory is short.
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
        """Compute tokens of some rows behind those that they computed before.

        Args:
            rows: shape ``[n]``.
            starts: tokens that each has computed and keeps; later ones are forgotten,
                shape ``[n]``.
            counts: tokens to compute, at least 1, shape ``[n]``.
            tokens: their ids, of each row the first ``counts``, shape ``[n, most]`` with
                ``most`` at least the largest count.

        Returns:
            Logits after the last token of each row, float32, shape ``[n, vocab_size]``.
        """


class RunPadded(Protocol):
    """Launches over the tensors of some lines; see ``CaptureLaunches``."""

    def __call__(self, num_lines: int, /) -> None:
        """Launch for the first lines of the tensors.

        Where they are captured the next larger size is replayed, which also computes lines
        behind those; where they are not, exactly so many are launched, kernel by kernel.

        Args:
            num_lines: from 1 to ``max_running``.
        """


class CaptureLaunches(Protocol):
    """Captures what a drafter launches on a GPU, so that guesses take one launch.

    It is to be called in ``open``. The engine launches each size once, and captures, when the model
    is loaded, while nothing runs: in a drafter that is swapped in later, for sizes whose capture
    failed, and with ``[engine] capture = "off"`` each kernel is launched by itself.
    """

    def __call__(
        self, launches: Callable[[int], None], name: str, logits_per_line: int
    ) -> RunPadded:
        """Have launches captured for some numbers of lines: 1, 2, 4, 8, ...

        Args:
            launches: launches what computes so many lines, and may use ``resources.target``. It
                reads and writes tensors that were made in ``open`` and stay, the first lines of
                each; what it makes itself may be overwritten once it has returned. Shapes follow
                from the number alone, and the host reads no tensor. It is called under
                ``torch.inference_mode`` with the tensors as ``open`` left them, and in a replay
                lines behind those that are asked for have whatever was there before: both must
                be harmless.
            name: of what is captured, for the log.
            logits_per_line: rows of ``resources.target.logits`` that a line has at a time, at
                least 1. Sizes with more than 256 of them are not captured: they take longer to
                compute than to launch, and their memory was not counted.

        Returns:
            What launches them, from the first ``admit`` on.
        """


@dataclass(frozen=True, slots=True)
class PenaltyColumns:
    """What rows have seen, and how much they mind.

    Attributes:
        seen: tokens of prompt and output, bool, shape ``[seen lines, vocab]``.
        seen_line: int64, shape ``[rows]``: each row's line of ``seen``, -1 for none.
        counts: how often a token was put out, int32, shape ``[count lines, vocab]``.
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
    """Penalises tokens that have been seen in one pass of a device; see ``EngineResources``."""

    def __call__(
        self,
        logits: torch.Tensor,
        index: torch.Tensor,
        rows: torch.Tensor,
        columns: PenaltyColumns,
    ) -> None:
        """First repetition, then frequency and presence, in place.

        Args:
            logits: as ``LogitsProcessor.apply`` is given them.
            index: which lines of ``logits`` to change, int64, shape ``[n]``; on the CPU.
            rows: the row of each of those lines, int64, shape ``[n]``; on the CPU.
            columns: what the rows have seen, on the device.
        """


@dataclass(frozen=True, slots=True)
class KvShape:
    """The attention of a model, as far as its keys and values tell.

    Attributes:
        num_layers: layers with attention.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides ``num_heads``.
        head_dim: size of a head.
        scale: factor on the scores before softmax.
        softcap: bounds scores, None for none.
        windows: per layer, how many of the latest places a token sees; 0 for all.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineResources:
    """The engine's fixed sizes, known once the model is loaded.

    Attributes:
        num_pages: pages of the KV pool that sequences can use.
        page_size: tokens per page.
        max_running: sequences that may run at once.
        max_batch_tokens: the token budget of one step.
        max_model_len: tokens of the model's context.
        vocab_size: entries of the logits' last dimension.
        eos_token_ids: the model's end tokens.
        device: ``cpu`` or ``cuda:N``.
        slots: capacity of the columns of ``QueueView``; they may grow later.
        folder: the model's checkpoint.
        target: the model, for drafters; it is loaded after strategies are opened.
        load_model: loads another checkpoint, for drafters; raises ValueError for what it cannot.
            Its keys and values are taken from the KV memory until nobody has it any more; until
            then, whoever asks for the same folder gets the same model, and trusts no row's content.
        page_bytes: of a page of the KV pool.
        replica: which of the daemon's engines it is, from 0.
        read_heads: reads trained networks of a folder, or of the one beside the model's for the
            empty name, for a drafter of a name; raises ValueError for those of another model.
        capture: compiles what a drafter launches at the start, and captures it if anything is
            captured; None on a CPU.
        forced: tokens that a row's logits processors force to come next, for drafters.
        penalise: a kernel for penalties, for logits processors; None on a CPU.
        kv_shape: of the model's attention; None where nobody asks.
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
    target: TargetModel | None = None
    load_model: Callable[[str], DraftModel] | None = None
    read_heads: Callable[[str, str], Heads] | None = None
    forced: Callable[[int], Sequence[int]] | None = None
    capture: CaptureLaunches | None = None
    penalise: Penalise | None = None
    kv_shape: KvShape | None = None


@dataclass(frozen=True, slots=True)
class GatewayResources:
    """What a strategy of the gateway process knows at start.

    Attributes:
        model: the served model's name.
        num_replicas: engine processes behind the gateway.
        chat_template: of the model, jinja; empty for one without.
    """

    model: str
    num_replicas: int
    chat_template: str = ""
