"""The quantizer that writes a checkpoint, with what it announces and which matrices it is for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, cast

import torch

from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.weights import dense
from gatewayd_engine.offline.quantize.input_groups import is_router, layer_matrices
from gatewayd_engine.offline.quantize.pruning import Packer, Pruner, Pruning
from gatewayd_engine.process.config import EngineConfigError, StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.quantization import (
    Announcement,
    Calibrates,
    Matrix,
    Prunes,
    QuantizerResources,
    QuantizerStrategy,
    Quantizes,
    Reads,
    Scheme,
    Weight,
    Writes,
)
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

_CONFIG = "config.json"
_HEAD = "lm_head"
"""It may be no tensor of its own."""
_JOINED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), "gate_up_proj"),
}
"""Matrices of one input, by what engines make of them, this one and vLLM."""


class CheckpointQuantizer:
    """A quantizer, open, for one checkpoint.

    Args:
        choice: the quantizer and its settings.
        host: loads it.
        checkpoint: of floats.
        skip: globs of names of matrices that stay as they are.

    Attributes:
        name: of the quantizer.
        settings: all of them.
        strategy: that rounds and packs.
        calibrates: the same, if it looks at inputs; None for one that does not.
        announced: the ``quantization_config``; nothing where floats are written.
        scheme: how what is written will be read.
        packed: names of the matrices that are to be of few bits.

    Raises:
        ConfigError: it writes no checkpoints, or none of this model.
        PluginError: it cannot be loaded.
    """

    def __init__(
        self, choice: StrategyChoice, host: PluginHost, checkpoint: Checkpoint, skip: Sequence[str]
    ) -> None:
        kind = Kind.QUANTIZER
        opened: QuantizerStrategy = host.strategy(kind, choice.name, choice.settings)
        strategy: object = opened
        if isinstance(opened, Prunes) and isinstance(opened, Quantizes):
            kinds = cache(lambda name: checkpoint.tensor(f"{name}.weight").dtype)
            strategy = Pruner(cast("Pruning", opened), kinds)
        if not isinstance(strategy, Writes) or not isinstance(strategy, Reads):
            raise EngineConfigError(
                f"--to {choice.name}: {kind}.{choice.name} writes no checkpoints"
            )
        self.name = choice.name
        config = host.info(kind, choice.name).config_type(**choice.settings)
        self.settings: dict[str, Any] = config.model_dump(mode="json")
        self.strategy: Packer = strategy
        self.calibrates = strategy if isinstance(strategy, Calibrates) else None
        self._opened = opened
        opened.open(QuantizerResources(str(checkpoint.folder), "cpu"))
        try:
            found = [
                matrix
                for index in range(checkpoint.spec.num_layers)
                for matrix in layer_matrices(checkpoint.shapes, index)
            ]
            kept = _packed(found, skip, checkpoint.shapes)
            if isinstance(strategy, Pruner):
                kept = strategy.among(kept)
            self.packed = [matrix.name for matrix in kept]
            packed = set(self.packed)
            plain = [matrix.name for matrix in found if matrix.name not in packed]
            _tell_split(self.packed, plain)
            self.announced = dict(strategy.announce(self.packed, plain))
            where = f"{_CONFIG}: quantization_config"
            self.scheme: Scheme = strategy.scheme(Announcement(self.announced, where))
            for matrix in found:
                self._check(matrix, is_packed=matrix.name in packed)
        except ValueError as error:
            opened.close()
            raise EngineConfigError(f"--to {choice.name}: {error}") from error
        except BaseException:
            opened.close()
            raise

    def close(self) -> None:
        """Nothing more is written."""
        self._opened.close()

    def pack(self, matrix: Matrix, weight: Weight) -> dict[str, torch.Tensor]:
        """The tensors of a matrix by their names in files, read back before they count.

        Raises:
            LoadError: they are no weight, or another.
        """
        tensors = self.strategy.pack(matrix, weight)
        try:
            read = self.scheme.weight(matrix, lambda suffix: tensors[suffix])
        except (ValueError, KeyError) as error:
            raise LoadError(f"{matrix.name}: what is packed cannot be read: {error}") from error
        if not torch.equal(dense(read), dense(weight)):
            raise LoadError(f"{matrix.name}: what is packed is read as other numbers")
        return {f"{matrix.name}.{suffix}": tensor for suffix, tensor in tensors.items()}

    def _check(self, matrix: Matrix, *, is_packed: bool) -> None:
        """Whether it reads what it announces.

        Raises:
            ValueError: it does not, or the matrix is of a size that it cannot pack.
        """
        if (self.scheme.stored(matrix) is not None) != is_packed:
            said = "stays as it is" if is_packed else "would be of few bits"
            raise ValueError(f"{matrix.name} {said} by what it announces")


def _packed(found: Sequence[Matrix], skip: Sequence[str], tensors: Iterable[str]) -> list[Matrix]:
    """Those that are to be of few bits.

    Args:
        found: matrices of all layers.
        skip: globs of those that stay, and maybe of others, which stay anyway.
        tensors: of the model.

    Raises:
        ConfigError: there are none, or a glob is of none.
    """
    names = {_HEAD, *(name.removesuffix(".weight") for name in tensors)}
    names |= {_joined(name) for name in names}
    for glob in skip:
        if not any(fnmatchcase(name, glob) for name in names):
            raise EngineConfigError(
                f"--skip, or [quantizer] skip: {glob} is the name of no matrix, as {found[0].name}"
            )
    kept = [
        matrix for matrix in found if not is_router(matrix) and not _is_skipped(matrix.name, skip)
    ]
    if not kept:
        raise EngineConfigError("every matrix is skipped: nothing is left to be quantized")
    return kept


def _tell_split(packed: Sequence[str], plain: Sequence[str]) -> None:
    """Say that others will not read it if a part of what they join is of few bits."""
    parts = {_joined(name): name for name in packed}
    for name in plain:
        if (found := parts.get(_joined(name))) is not None:
            _log.warning(
                "%s is not quantized but %s is: vLLM fuses them and cannot load such a "
                "checkpoint; skip both for vLLM",
                name,
                found,
            )
            return


def _is_skipped(name: str, skip: Sequence[str]) -> bool:
    """Whether a glob means a matrix, or what an engine joins it to: there the same setting acts."""
    names = (name, _joined(name))
    return any(fnmatchcase(each, glob) for each in names for glob in skip)


def _joined(name: str) -> str:
    """What an engine calls a matrix while it loads a model."""
    stem, dot, last = name.rpartition(".")
    return f"{stem}{dot}{_JOINED.get(last, last)}"
