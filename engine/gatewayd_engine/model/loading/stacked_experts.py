"""Experts of a layer that are one tensor, as transformers 5 holds them, shown one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from gatewayd_engine.model.loading.layout import expert_parts, expert_prefix
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.loading.tensor_sources import SafetensorsSource, TensorSource
from gatewayd_engine.model.spec import ModelSpec, MoeSpec
from gatewayd_hooks.quantization import Stored

_GATE_UP, _DOWN = ".experts.gate_up_proj", ".experts.down_proj"


def apart(source: SafetensorsSource, spec: ModelSpec) -> TensorSource:
    """The tensors of files with each expert's matrices under their names of releases.

    Raises:
        LoadError: a tensor is of other experts than the spec's.
    """
    if spec.moe is None or not any(name.endswith(_GATE_UP) for name in source.stored):
        return source
    return _Apart(source, spec, spec.moe)


class _Home(NamedTuple):
    """Where a tensor is: what it is a part of, the number of its expert, and its rows there."""

    name: str
    number: int
    rows: slice


class _Apart:
    """See ``TensorSource``; ``apart`` says of what."""

    def __init__(self, source: SafetensorsSource, spec: ModelSpec, moe: MoeSpec) -> None:
        self._source = source
        self._spec = spec
        self._moe = moe
        self._homes: dict[str, _Home] = {}
        self.stored: dict[str, Stored] = {}
        self._names: dict[str, str] = {}
        for name, stored in source.stored.items():
            if name.endswith((_GATE_UP, _DOWN)):
                self._take_apart(name, stored)
            else:
                shown = self._shown(name)
                self._names[shown] = name
                self.stored[shown] = stored

    def where(self, name: str) -> str:
        """See ``TensorSource``."""
        home = self._homes.get(name)
        return self._source.where(self._names[name] if home is None else home.name)

    def read(self, name: str) -> torch.Tensor:
        """See ``TensorSource``."""
        home = self._homes.get(name)
        if home is None:
            return self._source.read(self._names[name])
        return self._source.part(*home)

    def close(self) -> None:
        """See ``TensorSource``."""
        self._source.close()

    def _shown(self, name: str) -> str:
        """The name of a release: there Mixtral's routers are where its experts are."""
        layer, found, rest = name.partition(".mlp.gate.")
        return f"{expert_prefix(self._spec, layer, ())}.gate.{rest}" if found else name

    def _take_apart(self, name: str, stored: Stored) -> None:
        """Show the matrices of a tensor.

        Raises:
            LoadError: it is of other experts than the spec's.
        """
        hidden, inner = self._spec.hidden_size, self._moe.intermediate_size
        rows, columns = (2 * inner, hidden) if name.endswith(_GATE_UP) else (hidden, inner)
        shape = (self._moe.num_experts, rows, columns)
        if stored.shape != shape:
            raise LoadError(
                f"{self._source.where(name)}: {name} is {list(stored.shape)}, not {list(shape)}"
            )
        layer = name.rpartition(".experts.")[0].rpartition(".")[0]
        experts = f"{expert_prefix(self._spec, layer, ())}.experts"
        for number in range(self._moe.num_experts):
            for part, some in self._parts(name):
                shown = f"{experts}.{number}.{part}.weight"
                self._homes[shown] = _Home(name, number, some)
                size = len(range(*some.indices(rows)))
                self.stored[shown] = Stored(stored.dtype, (size, columns))

    def _parts(self, name: str) -> Iterator[tuple[str, slice]]:
        """The matrices that an expert has in a tensor, by their rows."""
        gate, up, down = expert_parts(self._spec)
        if name.endswith(_DOWN):
            yield down, slice(None)
            return
        inner = self._moe.intermediate_size
        yield gate, slice(0, inner)
        yield up, slice(inner, 2 * inner)
