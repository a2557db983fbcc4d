"""Groups of matrices that share an input, and what produces that input. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from gatewayd_engine.model.loading.layout import (
    Shapes,
    expert_parts,
    expert_prefix,
    matrices,
    mlp_prefix,
)
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_hooks.helpers.quantized import weighs_experts
from gatewayd_hooks.quantization import Matrix

SHARED = -1
"""Index of a layer's shared expert."""
_OF_LATENTS = (".kv_b_proj", ".k_b_proj", ".v_b_proj")
"""Ends of the names of matrices that expand latents."""


class InputSource(NamedTuple):
    """Weight that produces an input, into which per-column factors can be folded.

    Attributes:
        name: of the norm's or the matrix's weight.
        begin: first row of the matrix that produces the input.
        head_dim: head size, where the columns of a group of query heads come from the same rows of
            values; 0 where each column has its own row, or its own element of the norm.
        is_norm: whether it is a norm rather than a matrix.
    """

    name: str
    begin: int = 0
    head_dim: int = 0
    is_norm: bool = False


class InputGroup(NamedTuple):
    """Matrices of a layer that share an input.

    Attributes:
        name: of the fused matrix in the decoder.
        matrices: those that are to be quantized.
        before: what produces the input; None where no factors can be folded.
        is_alone: whether the loss is measured on the matrices' own output, not the layer's:
            because that is added to the residual stream unchanged, or because there are too many
            such groups to run the layer for each.
        expert: index of the expert, or ``SHARED``; None outside of experts.
    """

    name: str
    matrices: tuple[Matrix, ...]
    before: InputSource | None
    is_alone: bool
    expert: int | None = None


def layer_matrices(shapes: Shapes, index: int) -> list[Matrix]:
    """Return the matrices of a layer, including expert routers."""
    prefix = f"model.layers.{index}."
    return [m for m in matrices(shapes).values() if m.name.startswith(prefix)]


def stays_float(matrix: Matrix) -> bool:
    """Whether a matrix is never quantized: what weighs experts, and matrices that expand latents.

    The former are small and sensitive; the others are multiplied head by head, as floats.
    """
    return weighs_experts(matrix.name) or matrix.name.endswith(_OF_LATENTS)


def input_groups(
    spec: ModelSpec, shapes: Shapes, index: int, packed: Collection[str]
) -> Iterator[InputGroup]:
    """Yield the input groups of a layer in the order of computation.

    Args:
        spec: of the model.
        shapes: of its tensors.
        index: of the layer.
        packed: names of the matrices that are to be quantized.
    """
    finder = _Finder(spec, shapes, index, packed)
    prefix = f"model.layers.{index}"
    norms = spec.family.norms
    attention = finder.attention if spec.latent is None else finder.latent_attention
    yield from attention(f"{prefix}.self_attn", _norm(prefix, norms.before_attention))
    names = ("gate_proj", "up_proj", "down_proj")
    if spec.moe is None or not spec.moe.layers[index]:
        norm = _norm(prefix, norms.before_mlp)
        yield from finder.feed_forward(mlp_prefix(spec, prefix), names, norm, is_expert=False)
        return
    experts = expert_prefix(spec, prefix, [*shapes])
    for number in range(spec.moe.num_experts):
        # No folding into the norm, because the unquantized router reads it as well.
        found = finder.feed_forward(
            f"{experts}.experts.{number}", expert_parts(spec), None, is_expert=True
        )
        yield from (group._replace(expert=number) for group in found)
    if spec.moe.shared is not None:
        found = finder.feed_forward(
            f"{experts}.{spec.moe.shared.name}", names, None, is_expert=True
        )
        yield from (group._replace(expert=SHARED) for group in found)


def _norm(prefix: str, name: str | None) -> InputSource | None:
    """Return the norm before a part; None if it reads the residual stream itself."""
    return None if name is None else InputSource(f"{prefix}.{name}.weight", is_norm=True)


class _Finder:
    """Finder of a layer's input groups; see ``input_groups`` for the arguments."""

    def __init__(
        self, spec: ModelSpec, shapes: Shapes, index: int, packed: Collection[str]
    ) -> None:
        self._spec = spec
        self._shapes = shapes
        self._here = {m.name: m for m in layer_matrices(shapes, index)}
        self._packed = packed

    def attention(self, prefix: str, norm: InputSource | None) -> Iterator[InputGroup]:
        spec = self._spec
        names = self._matrix_names(prefix, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
        yield from self._group(f"{prefix}.qkv_proj", names, norm, False)
        values, begin = names[-1], 0
        if len(names) == 1:
            # In a fused matrix, values follow queries and keys.
            begin = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
        # Attention averages values: scaling their rows scales the matching columns of the input of
        # ``o_proj``.
        before = self._rows(values, begin, spec.head_dim)
        name, is_last = f"{prefix}.o_proj", spec.family.norms.after_attention is None
        yield from self._group(name, [name], before, is_last)

    def latent_attention(self, prefix: str, norm: InputSource | None) -> Iterator[InputGroup]:
        queries = f"{prefix}.q_proj"
        is_direct = queries in self._here
        if not is_direct:
            queries = f"{prefix}.q_a_proj"
        names = [queries, f"{prefix}.kv_a_proj_with_mqa"]
        yield from self._group(f"{prefix}.fused_qkv_a_proj_with_mqa", names, norm, False)
        if not is_direct:
            between = InputSource(f"{prefix}.q_a_layernorm.weight", is_norm=True)
            name = f"{prefix}.q_b_proj"
            yield from self._group(name, [name], between, False)
        name, is_last = f"{prefix}.o_proj", self._spec.family.norms.after_attention is None
        yield from self._group(name, [name], None, is_last)

    def feed_forward(
        self,
        prefix: str,
        parts: tuple[str, str, str],
        norm: InputSource | None,
        *,
        is_expert: bool,
    ) -> Iterator[InputGroup]:
        gate, up, down = parts
        names = self._matrix_names(prefix, "gate_up_proj", (gate, up))
        yield from self._group(f"{prefix}.gate_up_proj", names, norm, is_expert)
        begin = 0
        if len(names) == 1 and names[0] in self._here:
            # In a fused matrix the up projection follows the gate, which is not linear.
            begin = self._here[names[0]].rows // 2
        before = self._rows(names[-1], begin, 0)
        name, is_last = f"{prefix}.{down}", self._spec.family.norms.after_mlp is None
        yield from self._group(name, [name], before, is_last or is_expert)

    def _matrix_names(self, prefix: str, joined: str, parts: tuple[str, ...]) -> list[str]:
        """Return the names of matrices with a common input, stored fused or separately."""
        whole = f"{prefix}.{joined}"
        return [whole] if whole in self._here else [f"{prefix}.{part}" for part in parts]

    def _rows(self, name: str, begin: int, head_dim: int) -> InputSource | None:
        """Return rows to fold factors into, if lossless: before the matrix itself is quantized."""
        if name not in self._packed or f"{name}.bias" in self._shapes:
            return None
        return InputSource(f"{name}.weight", begin, head_dim)

    def _group(
        self, name: str, names: list[str], before: InputSource | None, is_alone: bool
    ) -> Iterator[InputGroup]:
        """Yield an input group, if any of its matrices is to be quantized."""
        found = [self._here[one] for one in names if one in self._packed]
        if found:
            # Factors cannot be applied to the columns of a matrix that is not quantized.
            before = before if len(found) == len(names) else None
            yield InputGroup(name, tuple(found), before, is_alone)
