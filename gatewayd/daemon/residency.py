"""Residency of a daemon's models: the budget and the strategy of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.catalogue.memory_budget import CatalogueBudget
from gatewayd.catalogue.model_residency import ModelResidency, ResidencyLimits, demand_of
from gatewayd.config.tables import Config
from gatewayd.daemon.models import ModelParts
from gatewayd.plugins.residency import FencedResidency
from gatewayd_hooks.strategy import Kind


def compose_residency(config: Config, models: Sequence[ModelParts]) -> ModelResidency:
    """Put all models under one budget; those that are loaded at their first request wait for it.

    Raises:
        BudgetExceeded: one can never be loaded.
        PluginError: the strategy cannot be loaded.
    """
    catalogue, plugged = config.catalogue, models[0].plugged
    name = config.residency.strategy
    strategy = plugged.host.strategy(Kind.RESIDENCY, name, config.residency.settings(name))
    strategy.open(plugged.resources)
    budget = CatalogueBudget(
        None if catalogue.memory is None else int(catalogue.memory),
        None if catalogue.device_memory is None else int(catalogue.device_memory),
    )
    residency = ModelResidency(
        ResidencyLimits(budget, catalogue.minimum_residency_seconds, catalogue.patience_seconds),
        FencedResidency(strategy, name, plugged.plugin_times, plugged.watchdog),
    )
    for model in sorted(models, key=lambda one: not one.managed.is_pinned):
        residency.add(model.managed)
        model.fleet.demand = demand_of(residency, model.managed)
    return residency
