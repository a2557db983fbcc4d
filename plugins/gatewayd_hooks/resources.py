"""What the host hands to a strategy in ``open``: sizes, limits, and the model for drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatewayd_hooks.logits import Penalise
    from gatewayd_hooks.speculation import CaptureLaunches, DraftModel, Heads, TargetModel


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
        capture: captures what a drafter launches; None on a CPU and where nothing is captured.
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
