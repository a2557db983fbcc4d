"""Selection of the quantizer of a model, and quantization of weights at load time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gatewayd_engine.model.loading.safetensors_headers import LoadError, shown
from gatewayd_engine.model.servable import ServableSpec
from gatewayd_engine.model.spec import SpecError
from gatewayd_engine.model.weights import validated
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.quantization import (
    Matrix,
    QuantizerResources,
    QuantizerStrategy,
    Quantizes,
    Reads,
    Scheme,
    Weight,
)
from gatewayd_hooks.strategy import Kind

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

AUTO = "auto"
_KIND = Kind.QUANTIZER


@dataclass(frozen=True, slots=True)
class Quantization:
    """An opened quantizer strategy.

    Attributes:
        choice: configured strategy, with ``auto`` resolved.
        watched: the strategy, open; its calls are timed.
        scheme: storage format of the checkpoint's matrices; None for unquantized ones.
        quantize: quantizes float weights at load time; None if the checkpoint is quantized.
    """

    choice: StrategyChoice
    watched: Any
    scheme: Scheme | None
    quantize: Quantizer | None


class Quantizer:
    """Quantizes float matrices at load time, except skipped ones.

    Args:
        name: of the strategy, for error messages.
        strategy: the strategy.
        skip: globs of names of matrices that are not quantized.
    """

    def __init__(self, name: str, strategy: Quantizes, skip: Sequence[str]) -> None:
        self._name = name
        self._strategy = strategy
        self._skip = tuple(skip)
        self._unmatched = set(skip)

    def __call__(self, matrix: Matrix, weight: torch.Tensor) -> Weight:
        """Quantize a matrix, unless it is skipped or the strategy leaves it as it is.

        Raises:
            LoadError: it cannot be quantized, or the strategy returned an invalid weight.
        """
        found = {glob for glob in self._skip if fnmatchcase(matrix.name, glob)}
        # What is left after loading is probably misspelled.
        self._unmatched -= found
        # All globs are tried even after a match, as each may match only this matrix.
        if found:
            return weight
        try:
            made = self._strategy.quantize(matrix, weight)
            return weight if made is None else validated(matrix, made)
        except ValueError as error:
            raise LoadError(f"{matrix.name}: {_KIND}.{self._name}: {error}") from error

    def warn_unmatched(self) -> None:
        """Log a warning for each glob of ``skip`` that matched no matrix; call after loading."""
        for glob in sorted(self._unmatched):
            _log.warning("[quantizer] skip has %r, which matches no matrix", glob)


def open_quantizer(
    config: EngineConfig, host: PluginHost, plugin_times: PluginTimes, spec: ServableSpec
) -> Quantization | None:
    """Open the quantizer that the configuration and the checkpoint ask for; None for none.

    Raises:
        EngineConfigError: configuration and checkpoint contradict each other.
        SpecError: the checkpoint is quantized in a way that cannot be read.
        PluginError: the strategy cannot be loaded.
    """
    choice = _choice(config, host, spec)
    if choice is None:
        return None
    strategy: QuantizerStrategy = host.strategy(_KIND, choice.name, choice.settings)
    watched = plugin_times.watch(_KIND, choice.name, strategy)
    try:
        watched.open(QuantizerResources(config.model, config.device))
        if spec.quantization is not None:
            return Quantization(
                choice, watched, _scheme(config, choice, strategy, watched, spec), None
            )
        if not isinstance(strategy, Quantizes):
            raise EngineConfigError(
                f"[quantizer] strategy is {choice.name}, which reads quantized checkpoints, but"
                " config.json has no quantization_config; set it to auto"
            )
        quantizer = Quantizer(choice.name, watched, config.quantizer_skip)
        return Quantization(choice, watched, None, quantizer)
    except BaseException:
        watched.close()
        raise


def _choice(config: EngineConfig, host: PluginHost, spec: ServableSpec) -> StrategyChoice | None:
    """Return the quantizer to open, with ``auto`` resolved.

    Raises:
        EngineConfigError, SpecError: no installed and configured quantizer reads the checkpoint.
    """
    choice, announced = config.quantizer, spec.quantization
    if announced is None:
        if choice is None or choice.name == AUTO:
            return None
        if [_KIND, choice.name] in config.quarantined:
            # Float weights serve without it; for quantized ones, below, there is no such fallback.
            _log.error("%s.%s is quarantined: the weights stay as they are", _KIND, choice.name)
            return None
        return choice
    method = announced.values.get("quant_method")
    if not isinstance(method, str):
        raise SpecError(
            f"{announced.where}.quant_method must be a string, not {shown(repr(method))}"
        )
    name, method = method.lower().replace("-", "_"), shown(method)
    if choice is None:
        raise EngineConfigError(
            f"{announced.where}.quant_method is {method!r}, but [quantizer] strategy is none; set"
            " it to auto"
        )
    # There is no table of methods: a checkpoint's ``quant_method`` is the name of a plugin.
    installed = sorted({row.name for row in host.report() if row.kind == _KIND})
    if choice.name == AUTO:
        if name not in installed:
            raise SpecError(
                f"{announced.where}.quant_method is {method!r}, and no installed quantizer has that"
                f" name; there is {', '.join(installed) or 'none'}"
            )
        choice = StrategyChoice(name, choice.settings.get(name, {}))
    elif choice.name != name:
        raise EngineConfigError(
            f"{announced.where}.quant_method is {method!r}: the weights are quantized already, but"
            f" [quantizer] strategy is {choice.name}; set it to auto"
        )
    if [_KIND, choice.name] in config.quarantined:
        raise EngineConfigError(
            f"{_KIND}.{choice.name} is quarantined because an engine crashed in it, and without it"
            " the weights cannot be read"
        )
    return choice


def _scheme(
    config: EngineConfig,
    choice: StrategyChoice,
    strategy: QuantizerStrategy,
    watched: Any,  # noqa: ANN401 - the strategy with timed calls
    spec: ServableSpec,
) -> Scheme:
    """Return the storage format of the checkpoint's matrices.

    Raises:
        EngineConfigError, SpecError: the strategy cannot read it.
    """
    announced = spec.quantization
    if announced is None or not isinstance(strategy, Reads):
        where = "config.json" if announced is None else announced.where
        raise SpecError(
            f"{where}: {_KIND}.{choice.name} reads no checkpoints; it quantizes float weights"
        )
    if config.dummy_weights:
        raise EngineConfigError(
            f"{announced.where}: dummy weights of a quantized checkpoint are not supported"
        )
    try:
        scheme: Scheme = watched.scheme(announced)
    except ValueError as error:
        raise SpecError(str(error)) from error
    return scheme
