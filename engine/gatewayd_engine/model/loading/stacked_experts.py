"""Splitting of stacked experts into single matrices.

transformers 5 stacks all experts of a layer. So do gpt-oss and Llama 4, whose matrices are stored
transposed; rows of gate and up projections alternate in gpt-oss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from gatewayd_engine.model.config.moe import MoeSpec
from gatewayd_engine.model.loading.layout import expert_parts, expert_prefix
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.loading.tensor_sources import SafetensorsSource, TensorSource
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_hooks.quantization import Stored

_GATE_UP, _DOWN = ".experts.gate_up_proj", ".experts.down_proj"
_KINDS = {"": "weight", "_bias": "bias", "_blocks": "blocks", "_scales": "scales"}
"""Ends of the names of stacked tensors, and what they hold of each matrix: MXFP4 has blocks of
numbers and their scales."""
_BLOCK = 32
"""Numbers of a block, of 4 bits each."""
_STACKED = tuple(whole + end for whole in (_GATE_UP, _DOWN) for end in _KINDS)


def split_experts(source: SafetensorsSource, spec: ModelSpec) -> TensorSource:
    """Wrap a source so that each expert's matrices have the names of the original releases.

    Raises:
        LoadError: the shape of a stacked tensor does not match the spec.
    """
    if spec.moe is None or not any(_GATE_UP in name for name in source.stored):
        return source
    return _SplitExpertsSource(source, spec, spec.moe)


class _Location(NamedTuple):
    """Location of an expert's tensor.

    Attributes:
        name: of the stacked tensor.
        number: of the expert.
        rows: those of the expert's part of it, perhaps every other one.
        is_transposed: whether they are the columns of what is stored.
    """

    name: str
    number: int
    rows: slice
    is_transposed: bool


class _SplitExpertsSource:
    """Tensor source in which stacked experts are split; see ``split_experts``."""

    def __init__(self, source: SafetensorsSource, spec: ModelSpec, moe: MoeSpec) -> None:
        self._source = source
        self._spec = spec
        self._moe = moe
        self._is_interleaved = spec.family.experts == "gpt_oss"
        self._is_transposed = self._is_interleaved or spec.family.experts == "llama4"
        self._locations: dict[str, _Location] = {}
        self.stored: dict[str, Stored] = {}
        # Names of the other tensors in the files, by the names under which they are shown.
        self._names: dict[str, str] = {}
        for name, stored in source.stored.items():
            if name.endswith(_STACKED):
                self._split(name, stored)
            else:
                shown = self._release_name(name)
                self._names[shown] = name
                self.stored[shown] = stored

    def where(self, name: str) -> str:
        """See ``TensorSource``."""
        location = self._locations.get(name)
        return self._source.where(self._names[name] if location is None else location.name)

    def read(self, name: str) -> torch.Tensor:
        """See ``TensorSource``."""
        location = self._locations.get(name)
        if location is None:
            return self._source.read(self._names[name])
        name, number, rows, is_transposed = location
        if not is_transposed and rows.step is None:
            return self._source.part(name, number, rows)
        # Slices of files have no steps, and rows of a transposed matrix are no slices.
        whole = self._source.part(name, number, slice(None))
        return (whole.t() if is_transposed else whole)[rows]

    def close(self) -> None:
        """See ``TensorSource``."""
        self._source.close()

    def _release_name(self, name: str) -> str:
        """Return a tensor's name in the original release, where Mixtral's routers differ."""
        layer, found, rest = name.partition(".mlp.gate.")
        return f"{expert_prefix(self._spec, layer, ())}.gate.{rest}" if found else name

    def _split(self, name: str, stored: Stored) -> None:
        """Add the matrices of a stacked tensor.

        Raises:
            LoadError: its shape does not match the spec.
        """
        hidden, inner = self._spec.hidden_size, self._moe.intermediate_size
        whole = _GATE_UP if _GATE_UP in name else _DOWN
        kind = _KINDS[name.rpartition(whole)[2]]
        rows, columns = (2 * inner, hidden) if whole == _GATE_UP else (hidden, inner)
        # Of each row.
        sizes = {
            "weight": (columns,),
            "bias": (),
            "blocks": (columns // _BLOCK, _BLOCK // 2),
            "scales": (columns // _BLOCK,),
        }[kind]
        is_transposed = self._is_transposed and kind == "weight"
        shape = (self._moe.num_experts, *((*sizes, rows) if is_transposed else (rows, *sizes)))
        if stored.shape != shape:
            raise LoadError(
                f"{self._source.where(name)}: {name} is {list(stored.shape)}, not {list(shape)}"
            )
        layer = name.rpartition(".experts.")[0].rpartition(".")[0]
        experts = f"{expert_prefix(self._spec, layer, ())}.experts"
        for number in range(self._moe.num_experts):
            for part, some in self._parts(name):
                shown = f"{experts}.{number}.{part}.{kind}"
                self._locations[shown] = _Location(name, number, some, is_transposed)
                # Rows of the slice, which may be open.
                size = len(range(*some.indices(rows)))
                self.stored[shown] = Stored(stored.dtype, (size, *sizes))

    def _parts(self, name: str) -> Iterator[tuple[str, slice]]:
        """Yield the names and rows of an expert's matrices in a stacked tensor."""
        gate, up, down = expert_parts(self._spec)
        inner = self._moe.intermediate_size
        if _DOWN in name:
            yield down, slice(None)
        elif self._is_interleaved:
            yield gate, slice(0, None, 2)
            yield up, slice(1, None, 2)
        else:
            yield gate, slice(0, inner)
            yield up, slice(inner, 2 * inner)
