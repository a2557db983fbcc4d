"""Quantizer of a checkpoint: selected matrices, quantization_config and packing."""

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
from gatewayd_engine.offline.quantize.input_groups import layer_matrices, stays_float
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
"""The head, which is no tensor of its own in models with tied embeddings."""
_JOINED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), "gate_up_proj"),
}
"""Matrices that engines, this one as well as vLLM, fuse; with the name of the fused matrix."""


class CheckpointQuantizer:
    """An opened quantizer strategy that writes one checkpoint.

    Args:
        choice: the quantizer and its settings.
        host: loads the strategy.
        checkpoint: the unquantized source.
        skip: globs of names of matrices that are not quantized.

    Attributes:
        name: of the quantizer.
        settings: all settings, including defaults.
        strategy: quantizes and packs matrices.
        calibrates: the strategy if it needs calibration inputs, else None.
        announced: the ``quantization_config``; empty where floats are written.
        scheme: reads the written checkpoint.
        packed: names of the matrices that are to be quantized.

    Raises:
        EngineConfigError: the quantizer cannot write checkpoints, or not of this model.
        PluginError: it cannot be loaded.
    """

    def __init__(
        self, choice: StrategyChoice, host: PluginHost, checkpoint: Checkpoint, skip: Sequence[str]
    ) -> None:
        kind = Kind.QUANTIZER
        opened: QuantizerStrategy = host.strategy(kind, choice.name, choice.settings)
        strategy: object = opened
        # A pruner has no format of its own: its results are written as floats.
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
                kept = strategy.prunable(kept)
            self.packed = [matrix.name for matrix in kept]
            packed = set(self.packed)
            plain = [matrix.name for matrix in found if matrix.name not in packed]
            _warn_split(self.packed, plain)
            self.announced = dict(strategy.announce(self.packed, plain))
            where = f"{_CONFIG}: quantization_config"
            self.scheme: Scheme = strategy.scheme(Announcement(self.announced, where))
            # Before calibration, which may take hours.
            for matrix in found:
                self._check(matrix, is_packed=matrix.name in packed)
        except ValueError as error:
            opened.close()
            raise EngineConfigError(f"--to {choice.name}: {error}") from error
        except BaseException:
            opened.close()
            raise

    def close(self) -> None:
        """Close the strategy."""
        self._opened.close()

    def pack(self, matrix: Matrix, weight: Weight) -> dict[str, torch.Tensor]:
        """Pack a matrix into tensors, by their names in files, and verify by reading them back.

        Raises:
            LoadError: the packed tensors cannot be read, or give other values.
        """
        tensors = self.strategy.pack(matrix, weight)
        try:
            read = self.scheme.weight(matrix, lambda suffix: tensors[suffix])
        except (ValueError, KeyError) as error:
            raise LoadError(f"{matrix.name}: packed tensors cannot be read: {error}") from error
        # Bit for bit: what is served must be what was calibrated.
        if not torch.equal(dense(read), dense(weight)):
            raise LoadError(f"{matrix.name}: packed tensors are read as other values")
        return {f"{matrix.name}.{suffix}": tensor for suffix, tensor in tensors.items()}

    def _check(self, matrix: Matrix, *, is_packed: bool) -> None:
        """Check that the scheme treats a matrix as it will be written.

        Raises:
            ValueError: it does not, or it cannot pack a matrix of that size.
        """
        if (self.scheme.stored(matrix) is not None) != is_packed:
            state = "not quantized" if is_packed else "quantized"
            raise ValueError(f"{matrix.name} is {state} according to the quantization_config")


def _packed(found: Sequence[Matrix], skip: Sequence[str], tensors: Iterable[str]) -> list[Matrix]:
    """Return the matrices that are to be quantized.

    Args:
        found: matrices of all layers.
        skip: globs of matrices to skip; they may match others that are never quantized.
        tensors: names of the model's tensors.

    Raises:
        EngineConfigError: none is left, or a glob matches nothing.
    """
    names = {_HEAD, *(name.removesuffix(".weight") for name in tensors)}
    # Globs may also name the fused matrix, as in an engine's configuration.
    names |= {_joined(name) for name in names}
    for glob in skip:
        if not any(fnmatchcase(name, glob) for name in names):
            raise EngineConfigError(
                f"--skip, or [quantizer] skip: {glob} matches no matrix; a name is, for example,"
                f" {found[0].name}"
            )
    kept = [
        matrix for matrix in found if not stays_float(matrix) and not _is_skipped(matrix.name, skip)
    ]
    if not kept:
        raise EngineConfigError("every matrix is skipped: nothing is left to be quantized")
    return kept


def _warn_split(packed: Sequence[str], plain: Sequence[str]) -> None:
    """Warn if only a part of the matrices that vLLM fuses is quantized."""
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
    """Whether a glob matches a matrix or its fused one, as the engine's own ``skip`` does."""
    names = (name, _joined(name))
    return any(fnmatchcase(each, glob) for each in names for glob in skip)


def _joined(name: str) -> str:
    """Return the name of the fused matrix that an engine loads a matrix into."""
    stem, dot, last = name.rpartition(".")
    return f"{stem}{dot}{_JOINED.get(last, last)}"
