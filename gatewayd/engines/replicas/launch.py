"""Configuration of engines, derived from the daemon's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gatewayd.config.device_defaults import sizes
from gatewayd.config.models import EMBEDDED
from gatewayd.config.strategies import (
    AUTO,
    NONE,
    KindTable,
    ModelBackendTable,
    QuantizerTable,
    StrategyTable,
)
from gatewayd.config.tables import Config
from gatewayd.engines.backlog import QueueLimits
from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd.hub.reference import is_reference, parse_reference
from gatewayd.hub.store import stored_path
from gatewayd.tracing import logs
from gatewayd_engine.model import embedded
from gatewayd_engine.model.config.context import served_context
from gatewayd_engine.model.gguf.expansion.model_folder import expanded, needs_expansion
from gatewayd_engine.model.tokenizer_files.conversion import with_tokenizer
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.process.machine_cpus import parse_cpu_list
from gatewayd_hooks.helpers import children

ENGINE_COMMAND = children.python("-m", "gatewayd_engine", "--fd", "{fd}")

# glibc reads its settings before any of our code runs. By default it returns the activations of
# each prompt to the system and maps them again, layer by layer: 5 % of a prefill.
_KEEP = str(1 << 30)
ENGINE_ENV = {
    "MALLOC_MMAP_THRESHOLD_": _KEEP,
    "MALLOC_TRIM_THRESHOLD_": _KEEP,
    "PYTHONFAULTHANDLER": "1",
}


def model_folder(config: Config) -> Path:
    """Absolute folder of the served checkpoint: the configured one, or the embedded model.

    Raises:
        ValueError: the configured path is a GGUF file, or has a tokenizer, that cannot be served,
            or is a model of the Hub that is not in the store.
    """
    return folder_of(model_source(config))


def folder_of(source: Path) -> Path:
    """Absolute folder of a checkpoint or GGUF file.

    Raises:
        ValueError: it is a GGUF file, or has a tokenizer, that cannot be served.
    """
    return expanded(source) if needs_expansion(source) else with_tokenizer(source)


def model_source(config: Config) -> Path:
    """Absolute path of the served checkpoint or GGUF file.

    Raises:
        ValueError: it is a model of the Hub that is not in the store, or no embedded model.
    """
    path = config.model.path
    if path is None:
        return embedded.folder()
    if path.startswith(EMBEDDED):
        return embedded.folder(path.removeprefix(EMBEDDED))
    if is_reference(path):
        return stored_path(path)
    return Path(path).expanduser().absolute()


def served_name(config: Config) -> str:
    """Model name for clients.

    Raises:
        ValueError: see ``model_folder``.
    """
    if config.model.served_name is not None:
        return config.model.served_name
    if config.model.path is not None and is_reference(config.model.path):
        return parse_reference(config.model.path).served_name
    return model_folder(config).resolve().name


def context_len(config: Config, folder: Path) -> int:
    """Context length in tokens by the checkpoint's ``config.json``; the engine may differ.

    Args:
        config: may limit it.
        folder: of the checkpoint.

    Raises:
        OSError, ValueError: ``config.json`` cannot be read.
    """
    text = (folder / "config.json").read_text("utf-8")
    model_len = served_context(json.loads(text)) or 1 << 20
    return min(model_len, config.model.max_model_len or model_len)


def checked_context_len(config: Config, folder: Path) -> int:
    """Context length in tokens by the checkpoint's ``config.json``.

    Args:
        config: may limit it.
        folder: of the checkpoint.

    Raises:
        ValueError: the model's ``config.json`` cannot be read; with its path.
    """
    try:
        return context_len(config, folder)
    except (OSError, ValueError, AttributeError) as error:
        file = folder / "config.json"
        reason = error.strerror if isinstance(error, OSError) else f"it is not JSON: {error}"
        if isinstance(error, AttributeError):
            reason = "it holds no JSON object"
        raise ValueError(f"cannot read {file}: {reason}") from error


def environment(config: Config, more: Mapping[str, str] = ENGINE_ENV) -> dict[str, str]:
    """Build the complete environment of a compute process.

    Args:
        config: names variables to inherit in addition to the list of ``children``.
        more: variables to set.
    """
    return children.environment(more, config.engine.environment)


def queue_limits(config: Config) -> QueueLimits:
    """The limits on waiting work."""
    queue = config.queue
    return QueueLimits(queue.max_waiting_requests, queue.max_waiting_tokens)


def deadlines(config: Config) -> tuple[float | None, ...]:
    """Time-to-first-token targets by ``Priority``, seconds; None for none."""
    classes = (config.slo.realtime, config.slo.standard, config.slo.batch)
    return tuple(None if c.ttft_ms is None else c.ttft_ms / 1000 for c in classes)


def silence_limits(config: Config) -> SilenceLimits:
    """Limits on an engine's silence."""
    engine = config.engine
    return SilenceLimits(
        load_seconds=engine.load_seconds,
        hang_seconds=engine.hang_seconds,
        doubt_seconds=engine.hang_seconds / 2,
    )


def engine_config(config: Config, folder: Path | None = None, name: str = "") -> EngineConfig:
    """Initial configuration of each engine.

    Args:
        config: of the model.
        folder: of the checkpoint; by default ``model_folder``.
        name: of the model where a daemon has several; empty for the first.
    """
    engine, model, chosen = config.engine, config.model, sizes(config.engine)
    return EngineConfig(
        model=str(folder or model_folder(config)),
        name=name,
        scheduler=_choice(config.scheduler.strategy, config.scheduler),
        prefix_cache=_optional(config.prefix_cache),
        eviction=_choice(config.eviction.strategy, config.eviction),
        preemption=_choice(config.preemption.strategy, config.preemption),
        model_backend=_model_backend(model.backend, config.model_backend),
        quantizer=_quantizer(config.quantizer),
        quantizer_skip=config.quantizer.skip,
        quantizer_kernels=[_choice(name, config.quantizer) for name in config.quantizer.kernels],
        guide=_optional(config.guide),
        drafter=_optional(config.drafter),
        spec_controller=_choice(config.spec_controller.strategy, config.spec_controller),
        logits_processors=[
            _choice(name, config.logits_processor) for name in config.logits_processor.strategies
        ],
        kv_tiers=[_choice(name, config.kv_tier) for name in config.kv_tier.strategies],
        kv_codec=_optional(config.kv_codec),
        kv_compression=_optional(config.kv_compression),
        dtype=model.dtype,
        device=chosen.device,
        dummy_weights=model.dummy_weights,
        page_size=engine.page_size_tokens,
        kv_pages=engine.kv_pages,
        kv_bytes=None if engine.kv_memory is None else int(engine.kv_memory),
        copy_bytes=None if engine.copy_memory is None else int(engine.copy_memory),
        cascade_attention=engine.cascade_attention,
        capture=engine.capture,
        cpu_kernels=engine.cpu_kernels,
        cpu_activations=engine.cpu_activations,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        draft_bytes=None if engine.draft_memory is None else int(engine.draft_memory),
        max_running=chosen.max_running,
        max_batch_tokens=chosen.max_batch_tokens,
        max_model_len=model.max_model_len,
        threads=engine.threads,
        cpus=list(parse_cpu_list(engine.cpus)) if engine.cpus else [],
        replicas=engine.replicas,
        seed=engine.seed,
        fault_limit=engine.fault_limit,
        strategy_budget_ms=engine.strategy_budget_ms,
        strategy_hang_seconds=engine.strategy_hang_seconds,
        load_seconds=engine.load_seconds,
        log_level=config.log.level,
        log_json=not logs.is_text(config.log),
    )


def _optional(table: StrategyTable) -> StrategyChoice | None:
    return None if table.strategy == NONE else _choice(table.strategy, table)


def _model_backend(name: str, table: ModelBackendTable) -> StrategyChoice:
    """The choice; for ``auto`` the tables of all, as for ``_quantizer``."""
    if name == AUTO:
        return StrategyChoice(AUTO, dict(table.model_extra or {}))
    return _choice(name, table)


def _quantizer(table: QuantizerTable) -> StrategyChoice | None:
    """The choice; for ``auto`` the tables of all, since only the engine reads the checkpoint."""
    if table.strategy == AUTO:
        return StrategyChoice(AUTO, dict(table.model_extra or {}))
    return _optional(table)


def _choice(name: str, table: KindTable) -> StrategyChoice:
    return StrategyChoice(name, table.settings(name))
