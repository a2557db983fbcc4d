"""``python -m gatewayd_engine.offline.describe_model``: which backend would serve a model."""

from __future__ import annotations

import logging
import math

from gatewayd_engine.offline.child_job import read_job
from gatewayd_engine.offline.model_description import (
    DescriptionJob,
    ModelDescription,
    ModelRefused,
)
from gatewayd_engine.process.config import EngineConfig, EngineConfigError
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes


def describe(config: EngineConfig) -> ModelDescription:
    """Choose the backend of an engine, and describe its model.

    Raises:
        SpecError, EngineConfigError, PluginError: no backend serves it.
    """
    import torch

    from gatewayd_engine.kv.pool import page_bytes
    from gatewayd_engine.model.loading.layout import layout
    from gatewayd_engine.model.model_backend import NATIVE, PluginBackend, choose_backend

    times = PluginTimes(config.strategy_budget_ms / 1000, None)
    chosen = choose_backend(config, PluginHost(Catalog.installed()), times)
    if isinstance(chosen, PluginBackend):
        spec, name = chosen.spec, chosen.choice.name
        num_parameters, shape = spec.facts.num_parameters, spec.attention
        chosen.watched.close()
        architecture, length = spec.architecture, spec.max_model_len
    else:
        name, shape = NATIVE, chosen.attention
        num_parameters = sum(map(math.prod, layout(chosen).values()))
        architecture, length = chosen.architecture, chosen.max_model_len
    dtype = config.dtype
    if dtype == "auto":
        dtype = "float32" if config.device == "cpu" else "bfloat16"
    kind: torch.dtype = getattr(torch, dtype)
    return ModelDescription(
        backend=name,
        architecture=architecture,
        dtype=dtype,
        num_parameters=num_parameters,
        weight_bytes=num_parameters * kind.itemsize,
        token_bytes=page_bytes(shape, 1, kind),
        max_model_len=length,
    )


def main() -> None:
    """Run the job."""
    job, emit = read_job(DescriptionJob)
    logging.basicConfig(level=logging.ERROR)
    from gatewayd_engine.model.json_fields import SpecError

    try:
        emit(describe(job.config))
    except (SpecError, EngineConfigError, PluginError) as error:
        emit(ModelRefused(str(error)))


if __name__ == "__main__":
    main()
