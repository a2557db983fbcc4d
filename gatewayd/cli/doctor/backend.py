"""Check which backend would serve the model, in what type, with how much memory."""

from __future__ import annotations

from gatewayd.cli.child import ChildFailed, run_job
from gatewayd.cli.doctor.finding import Finding
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import engine_config
from gatewayd_engine.offline.model_description import (
    DescriptionJob,
    ModelDescription,
    ModelRefused,
)

_MODULE = "gatewayd_engine.offline.describe_model"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def backend(config: Config) -> Finding:
    """Ask the engine which backend would serve the model."""
    events = ModelDescription | ModelRefused
    try:
        job = DescriptionJob(engine_config(config))
        (found,) = run_job(_MODULE, "describes the model", job, events, config.engine.environment)
    except (ChildFailed, ValueError) as error:
        return Finding("backend", "failure", str(error))
    if isinstance(found, ModelRefused):
        return Finding("backend", "failure", found.reason)
    tokens = f"{_size(found.token_bytes)} of KV cache a token"
    text = (
        f"{found.backend} serves {found.architecture} in {found.dtype}:"
        f" {found.num_parameters:,} parameters, {_size(found.weight_bytes)} of weights unless"
        f" quantized, {tokens}, {_size(found.token_bytes * found.max_model_len)} for a context of"
        f" {found.max_model_len:,}"
    )
    return Finding("backend", "ok", text)


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:.1f} {unit}".replace(".0 ", " ")
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"
