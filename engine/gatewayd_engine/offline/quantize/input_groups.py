"""Which matrices of a layer share an input, and what makes that input. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from gatewayd_engine.model.loading.layout import (
    Shapes,
    expert_parts,
    expert_prefix,
    layer_norms,
    matrices,
)
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_hooks.quantization import Matrix


class Before(NamedTuple):
    """What the columns of an input come from, and could be divided in.

    Attributes:
        name: of a norm's weight, or of a matrix's.
        begin: the first of the matrix's rows, of which there are as many as its heads have.
        head_dim: rows that are shared by the columns of a group of query heads; 0 where each
            column has a row, or a number of the norm, of its own.
        is_norm: rather than a matrix.
    """

    name: str
    begin: int = 0
    head_dim: int = 0
    is_norm: bool = False


class InputGroup(NamedTuple):
    """Where a layer multiplies.

    Attributes:
        name: of what the decoder multiplies with, in which the matrices are joined.
        matrices: those that are to be of few bits.
        before: None where nothing may be divided.
        is_alone: what the matrices themselves make says how far the layer is off: it is added to
            the stream as it is, or there are too many of its like to run the layer for each.
        expert: the number of the expert that it is in; None for a place that all tokens pass.
    """

    name: str
    matrices: tuple[Matrix, ...]
    before: Before | None
    is_alone: bool
    expert: int | None = None


def layer_matrices(shapes: Shapes, index: int) -> list[Matrix]:
    """The matrices of a layer, routers of experts among them."""
    prefix = f"model.layers.{index}."
    return [m for m in matrices(shapes).values() if m.name.startswith(prefix)]


def is_router(matrix: Matrix) -> bool:
    """Whether its few numbers choose experts: they decide much and stay as they are."""
    return matrix.name.endswith(".gate")


def places(
    spec: ModelSpec, shapes: Shapes, index: int, packed: Collection[str]
) -> Iterator[InputGroup]:
    """The places of a layer in the order in which it computes.

    Args:
        spec: of the model.
        shapes: of its tensors.
        index: of the layer.
        packed: names of the matrices that are to be of few bits.
    """
    finder = _Finder(spec, shapes, index, packed)
    prefix = f"model.layers.{index}"
    attention, mlp = layer_norms(spec)[:2]
    yield from finder.attention(f"{prefix}.self_attn", f"{prefix}.{attention}.weight")
    if spec.moe is None or not spec.moe.layers[index]:
        names = ("gate_proj", "up_proj", "down_proj")
        norm = Before(f"{prefix}.{mlp}.weight", is_norm=True)
        yield from finder.feed_forward(f"{prefix}.mlp", names, norm)
        return
    experts = expert_prefix(spec, prefix, [*shapes])
    for number in range(spec.moe.num_experts):
        # The router multiplies with the norm, too, and stays as it is.
        found = finder.feed_forward(f"{experts}.experts.{number}", expert_parts(spec), None)
        yield from (place._replace(expert=number) for place in found)


class _Finder:
    """Finds the places of a layer; ``places`` says of what."""

    def __init__(
        self, spec: ModelSpec, shapes: Shapes, index: int, packed: Collection[str]
    ) -> None:
        self._spec = spec
        self._shapes = shapes
        self._here = {m.name: m for m in layer_matrices(shapes, index)}
        self._packed = packed

    def attention(self, prefix: str, norm: str) -> Iterator[InputGroup]:
        spec = self._spec
        names = self._apart(prefix, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
        yield from self._place(f"{prefix}.qkv_proj", names, Before(norm, is_norm=True), False)
        values, begin = names[-1], 0
        if len(names) == 1:
            begin = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
        before = self._rows(values, begin, spec.head_dim)
        name, is_last = f"{prefix}.o_proj", not spec.family.post_norms
        yield from self._place(name, [name], before, is_last)

    def feed_forward(
        self, prefix: str, parts: tuple[str, str, str], norm: Before | None
    ) -> Iterator[InputGroup]:
        gate, up, down = parts
        names = self._apart(prefix, "gate_up_proj", (gate, up))
        is_expert = norm is None
        yield from self._place(f"{prefix}.gate_up_proj", names, norm, is_expert)
        begin = 0
        if len(names) == 1 and names[0] in self._here:
            begin = self._here[names[0]].rows // 2
        before = self._rows(names[-1], begin, 0)
        name, is_last = f"{prefix}.{down}", not self._spec.family.post_norms
        yield from self._place(name, [name], before, is_last or is_expert)

    def _apart(self, prefix: str, joined: str, parts: tuple[str, ...]) -> list[str]:
        """Names of the matrices of one input, which are stored joined or apart."""
        whole = f"{prefix}.{joined}"
        return [whole] if whole in self._here else [f"{prefix}.{part}" for part in parts]

    def _rows(self, name: str, begin: int, head_dim: int) -> Before | None:
        """Rows of a matrix, if they can be divided exactly: as floats that will be rounded."""
        if name not in self._packed or f"{name}.bias" in self._shapes:
            return None
        return Before(f"{name}.weight", begin, head_dim)

    def _place(
        self, name: str, names: list[str], before: Before | None, is_alone: bool
    ) -> Iterator[InputGroup]:
        """A place, if any of its matrices is to be of few bits."""
        found = [self._here[one] for one in names if one in self._packed]
        if found:
            # A matrix that stays as it is could not keep what its columns are multiplied with.
            before = before if len(found) == len(names) else None
            yield InputGroup(name, tuple(found), before, is_alone)
