"""Which plugins multiply weights of few bits: opened before the model, in their order."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from gatewayd_engine.model.linears.plugin_matmul import Bringer, Bringers
from gatewayd_engine.process.config import EngineConfig, EngineConfigError
from gatewayd_hooks.host.errors import told
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.multiplying import Multiplies
from gatewayd_hooks.quantization import QuantizerResources
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

_KIND = Kind.QUANTIZER


def open_bringers(config: EngineConfig, host: PluginHost, ledger: Ledger) -> Bringers:
    """Open the strategies of ``[quantizer] kernels``; those in quarantine are left out.

    Raises:
        ConfigError: one of them multiplies nothing, or cannot be opened.
        PluginError: one of them cannot be loaded.
    """
    with ExitStack() as opened:
        found = []
        for choice in config.quantizer_kernels:
            who = f"{_KIND}.{choice.name}"
            if [_KIND, choice.name] in config.quarantined:
                _log.error("%s is quarantined: the engine's own products serve", who)
                continue
            strategy = host.strategy(_KIND, choice.name, choice.settings)
            if not isinstance(strategy, Multiplies):
                raise EngineConfigError(
                    f"[quantizer] kernels has {choice.name}, which multiplies nothing; it is for"
                    " [quantizer] strategy"
                )
            watched = ledger.watch(_KIND, choice.name, strategy)
            opened.callback(watched.close)
            try:
                watched.open(QuantizerResources(config.model, config.device))
            except Exception as error:
                reason = str(error) if isinstance(error, ValueError) else told(error)
                raise EngineConfigError(f"[quantizer] kernels: {who}: {reason}") from error
            found.append(Bringer(choice.name, watched))
        opened.pop_all()
        return Bringers(found)
