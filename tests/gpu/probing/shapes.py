"""What the probe measures: the 8B shape on a GPU, and a tiny one for its rehearsal on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BATCHES = (1, 8, 32, 64, 128, 256)
LAYERS, HEADS, KV_HEADS, DIM, PAGE = 32, 32, 8, 128, 16
HIDDEN, INTERMEDIATE, VOCAB = 4096, 14336, 128_256


@dataclass(frozen=True, slots=True)
class Experts:
    """One mixture of experts: sizes of its matrices, and the lines it is measured at."""

    experts: int
    top_k: int
    hidden: int
    inner: int
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Latents:
    """Latent attention: numbers of a record, and of the latent that is its value.

    Attributes:
        heads: of queries.
        dim: of a record.
        value_dim: of the latent.
        chunk: tokens of a prompt's chunk.
    """

    heads: int
    dim: int
    value_dim: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model, and what is measured of it.

    Attributes:
        dtype: of activations and dense weights.
        batches: lines of a decode step.
        contexts: tokens of each line, those of the step included.
        fused: lines at which norms and gates are computed within products.
        packed: lines at which low-bit weights are multiplied.
        verified: lines of a step that verifies drafts.
        widths: slots of each of its lines.
        max_len: tokens of the longest context: decides how contexts are split.
        chunk: positions of a chunk, of layers that attend within chunks.
    """

    layers: int
    heads: int
    kv_heads: int
    dim: int
    page: int
    hidden: int
    intermediate: int
    vocab: int
    dtype: torch.dtype
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    fused: tuple[int, ...]
    packed: tuple[int, ...]
    verified: int
    widths: tuple[int, ...]
    max_len: int
    chunk: int
    mixture: Experts
    latents: Latents

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of the matrices; all but the head are in each layer."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.dim, self.hidden),
            "out": (self.hidden, self.heads * self.dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
            "head": (self.vocab, self.hidden),
        }


LLAMA = Sizes(
    layers=LAYERS,
    heads=HEADS,
    kv_heads=KV_HEADS,
    dim=DIM,
    page=PAGE,
    hidden=HIDDEN,
    intermediate=INTERMEDIATE,
    vocab=VOCAB,
    dtype=torch.bfloat16,
    batches=BATCHES,
    contexts=(256, 1024, 4096),
    fused=(1, 8, 16),
    packed=(1, 8, 32),
    verified=32,
    widths=(2, 3, 5, 9),  # what the engine pads drafts to, up to 8 of them
    max_len=8192,
    chunk=3072,  # of the longest context a third is in the last chunk; Llama 4's are 8,192
    mixture=Experts(32, 8, 2048, 768, (1, 32)),  # a quarter of the experts of Qwen3-30B-A3B
    latents=Latents(128, 576, 512, 2048),  # DeepSeek-V3's
)
SHAPES = LLAMA.matrices
TINY = Sizes(
    layers=2,
    heads=4,
    kv_heads=1,
    dim=16,
    page=16,
    hidden=128,
    intermediate=128,
    vocab=64,
    # Triton's interpreter multiplies no bfloat16.
    dtype=torch.float32,
    batches=(1, 2),
    contexts=(20, 140),  # the latter in two parts, where there is one line
    fused=(2,),
    packed=(2,),
    verified=2,
    widths=(3,),
    max_len=256,
    chunk=48,
    mixture=Experts(4, 2, 32, 16, (3,)),
    latents=Latents(4, 24, 16, 12),
)
