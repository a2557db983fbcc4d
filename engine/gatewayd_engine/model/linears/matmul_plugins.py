"""Opening of the plugins that provide matmul kernels for quantized weights."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from gatewayd_engine.model.linears.plugin_matmul import MatmulPlugin, MatmulPlugins
from gatewayd_engine.process.config import EngineConfig, EngineConfigError
from gatewayd_hooks.host.errors import describe_error
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.multiplying import Multiplies
from gatewayd_hooks.quantization import QuantizerResources
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

_KIND = Kind.QUANTIZER


def open_matmul_plugins(
    config: EngineConfig, host: PluginHost, plugin_times: PluginTimes
) -> MatmulPlugins:
    """Open the strategies of ``[quantizer] kernels`` in order, except quarantined ones.

    Raises:
        ConfigError: a strategy provides no matmul kernel, or cannot be opened.
        PluginError: a strategy cannot be loaded.
    """
    with ExitStack() as opened:
        found = []
        for choice in config.quantizer_kernels:
            who = f"{_KIND}.{choice.name}"
            if [_KIND, choice.name] in config.quarantined:
                _log.error("%s is quarantined: the engine's own kernels are used", who)
                continue
            strategy = host.strategy(_KIND, choice.name, choice.settings)
            if not isinstance(strategy, Multiplies):
                raise EngineConfigError(
                    f"[quantizer] kernels has {choice.name}, which provides no matmul kernel;"
                    " set it as [quantizer] strategy instead"
                )
            watched = plugin_times.watch(_KIND, choice.name, strategy)
            # Before ``open``: a plugin that fails halfway is closed as well.
            opened.callback(watched.close)
            try:
                watched.open(QuantizerResources(config.model, config.device))
            except Exception as error:
                reason = str(error) if isinstance(error, ValueError) else describe_error(error)
                raise EngineConfigError(f"[quantizer] kernels: {who}: {reason}") from error
            found.append(MatmulPlugin(choice.name, watched))
        # All are open: from here on none is closed.
        opened.pop_all()
        return MatmulPlugins(found)
