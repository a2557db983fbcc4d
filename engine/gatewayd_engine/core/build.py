"""Construction of an engine core from its configuration: model, KV pool, strategies."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from gatewayd_engine.core.engine_core import EngineCore
from gatewayd_engine.kv.codec import Codec, PoolFormat, pool_format
from gatewayd_engine.kv.memory_budget import MemoryBudget, mib
from gatewayd_engine.kv.pool import KvPool, page_bytes
from gatewayd_engine.model.linears.matmul_plugins import open_matmul_plugins
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import dummy, read
from gatewayd_engine.model.model_backend import NATIVE, PluginBackend, choose_backend
from gatewayd_engine.model.parts import LayerParts, with_matmul_plugins
from gatewayd_engine.model.plugin_model import PluginWeights, load_plugin_model
from gatewayd_engine.model.quantizer import Quantizer, open_quantizer
from gatewayd_engine.model.servable import ServableModel, ServableSpec
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_engine.process.machine_usage import UsageMeter
from gatewayd_engine.process.messages import ModelInfo
from gatewayd_engine.runner.backend import Backend, backend_for
from gatewayd_engine.sampling.random import fork_seed
from gatewayd_engine.speculation.draft_heads import heads_folder, read_heads
from gatewayd_engine.speculation.draft_models import (
    DraftTarget,
    LoadedDraftModels,
    draft_bytes_needed,
    draft_weight_bytes,
    load_draft_model,
)
from gatewayd_engine.strategies.active import Strategies
from gatewayd_engine.strategies.kv_compression import ActiveCompression, check_compression_device
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.marker import Marker
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import ModelDrafter
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)
_DRAFT_SHARE = 4
"""A draft model gets at most a fourth of a GPU's KV memory, unless ``draft_bytes`` is set."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine core and the description of the model it serves."""

    core: EngineCore
    info: ModelInfo


def assemble(
    config: EngineConfig, host: PluginHost, progress: Callable[[str, float], None]
) -> BuiltEngine:
    """Load the model and build the engine core.

    Args:
        config: engine configuration.
        host: loads the strategies.
        progress: called with the loading stage and its completed fraction.

    Raises:
        EngineConfigError: sizes that do not fit one another.
        SpecError, LoadError: the checkpoint cannot be served.
        PluginError: a strategy cannot be loaded.
    """
    if config.max_batch_tokens < 1 or config.max_running < 1:
        raise EngineConfigError("max_batch_tokens and max_running must be at least 1")
    folder = Path(config.model)
    check_compression_device(config)
    plugin_times = PluginTimes(config.strategy_budget_ms / 1000, Marker.attached(config.marker))
    chosen = choose_backend(config, host, plugin_times)
    plugin = chosen if isinstance(chosen, PluginBackend) else None
    spec: ServableSpec = chosen.spec if isinstance(chosen, PluginBackend) else chosen
    config = config.with_choices(
        Kind.MODEL_BACKEND, [StrategyChoice(NATIVE) if plugin is None else plugin.choice]
    )
    quantization = open_quantizer(config, host, plugin_times, spec)
    # The choice may come from the checkpoint; strategies and KV fingerprints use the resolved one.
    config = config.with_choices(
        Kind.QUANTIZER, [] if quantization is None else [quantization.choice]
    )
    matmul_plugins = open_matmul_plugins(config, host, plugin_times)
    # Read all headers before any weights, and before anything that takes long.
    scheme = None if quantization is None else quantization.scheme
    checkpoint = None
    if isinstance(chosen, ModelSpec) and not config.dummy_weights:
        checkpoint = Checkpoint.open(folder, chosen, scheme)
    backend = backend_for(config, progress)
    dtype = _dtype(config, backend)
    head_dim, decodes = spec.attention.head_dim, backend.elements is None
    form = pool_format(config, host, head_dim, dtype, backend.elements)

    # Loaded once: early by a backend that measures the memory left, otherwise after the strategies.
    @cache
    def decoder() -> ServableModel:
        quantizer = None if quantization is None else quantization.quantize
        parts = with_matmul_plugins(backend.parts, matmul_plugins)
        if isinstance(chosen, PluginBackend):
            return _plugin_model(config, chosen, dtype, parts, progress, quantizer)
        return _decoder(config, checkpoint, chosen, dtype, parts, progress, quantizer, form)

    # Most backends do not need the loaded model for this.
    kv_bytes = backend.kv_bytes(decoder)
    if config.device != "cpu" and config.kv_bytes is None:
        # The drafter's weights share the memory that was measured for the KV cache.
        kv_bytes -= _drafter_weights(config, host)
    draft_reserve = config.draft_bytes
    if draft_reserve is None:
        draft_reserve = _draft_reserve(config, host, spec, dtype, kv_bytes)
    record = None if form is None else form.record_bytes
    each = page_bytes(spec.attention, config.page_size, dtype, record)
    num_pages = _num_pages(config, spec, each, kv_bytes, draft_reserve)
    pool_bytes = num_pages * each
    # An explicit kv_pages may leave less.
    memory = MemoryBudget(max(kv_bytes - pool_bytes, draft_reserve))
    _log.info(
        "KV cache: %s for %d pages; %s of memory left", mib(pool_bytes), num_pages, mib(memory.free)
    )
    # A single sequence must fit into the pool.
    max_model_len = min(spec.max_model_len, num_pages * config.page_size)
    target = DraftTarget(spec.hidden_size, dtype)
    # A config.json may name ids that the model has not, and that are thus never generated.
    ends = tuple(end for end in spec.eos_token_ids if end < spec.vocab_size)
    resources = EngineResources(
        num_pages=num_pages,
        page_size=config.page_size,
        max_running=config.max_running,
        max_batch_tokens=config.max_batch_tokens,
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=ends,
        device=config.device,
        # The initial capacity of the queue, see `EngineCore`.
        slots=256,
        folder=str(folder),
        replica=config.replica,
        model=config.name,
        page_bytes=each,
        target=target,
        load_model=LoadedDraftModels(
            lambda folder: load_draft_model(
                folder,
                max_running=config.max_running,
                max_model_len=max_model_len,
                dtype=dtype,
                device=config.device,
                make=backend.row_model,
                memory=memory,
                parts=backend.draft_parts(),
            )
        ),
        read_heads=lambda setting, kind: read_heads(
            setting, kind, folder, target, spec.vocab_size, config.device
        ),
        capture=backend.offered,
        penalise=backend.penalise,
        kv_shape=spec.attention.kv_shape,
        # Called only after the processors have been built.
        forced=lambda row: strategies.processors.forced(row),
    )
    # Strategies first: a wrong name, or a failing codec, should not wait for the weights.
    fixed = {} if quantization is None else {Kind.QUANTIZER: quantization.watched}
    if plugin is not None:
        fixed[Kind.MODEL_BACKEND] = plugin.watched
    strategies = Strategies(config, host, resources, plugin_times, fixed, matmul_plugins)
    codec = None
    if strategies.codec is not None and record is not None and decodes:
        codec = Codec(strategies.codec, record, head_dim, dtype)
        codec.self_test(strategies.names[Kind.KV_CODEC.value])
    model = decoder()
    matmul_plugins.log_summary()
    target.set_model(model)
    element = None if form is None else form.element
    pool = KvPool(spec.attention, num_pages, config.page_size, dtype, config.device, codec, element)
    seed = config.seed or secrets.randbits(63)
    # Requests without a seed get the engine's next derived one; 0 would be its seed itself.
    drawn = iter(range(1, 2**62))
    core = EngineCore(
        lambda rows, strategies: backend.runner(
            model, pool, rows, strategies.processors, ActiveCompression(strategies)
        ),
        pool,
        strategies,
        max_running=config.max_running,
        max_batch_tokens=config.max_batch_tokens,
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=ends,
        draw_seed=lambda: fork_seed(seed, next(drawn)),
        meter=UsageMeter(config.device),
    )
    info = ModelInfo(
        architecture=spec.architecture,
        num_parameters=model.num_parameters,
        dtype=str(dtype).removeprefix("torch."),
        device=config.device,
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=list(ends),
        num_pages=num_pages,
        page_size=config.page_size,
        max_running=config.max_running,
        max_batch_tokens=config.max_batch_tokens,
        strategies=strategies.names,
        hidden_size=spec.hidden_size,
        page_bytes=resources.page_bytes,
        kv_record_bytes=pool.data.shape[-1] * pool.data.itemsize,
        weight_bytes=model.weight_bytes,
        tuning_file=backend.tuning_file,
    )
    return BuiltEngine(core, info)


def _dtype(config: EngineConfig, backend: Backend) -> torch.dtype:
    name = config.dtype
    if name == "auto":
        return backend.dtype
    if name not in _DTYPES:
        raise EngineConfigError(f"dtype is {name!r}; it can be auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _draft_reserve(
    config: EngineConfig, host: PluginHost, spec: ServableSpec, dtype: torch.dtype, kv_bytes: int
) -> int:
    """Return the bytes of KV memory that the draft model needs, also when it is quarantined.

    A GPU has many rows, whose full contexts may need more than there is: there the draft model
    gets a share, and drafts only for shorter sequences.
    """
    choice = config.drafter
    if choice is None:
        return 0
    try:
        needed = _needed(choice, config, host, spec, dtype)
        return needed if config.device == "cpu" else min(needed, kv_bytes // _DRAFT_SHARE)
    except Exception:
        # A quarantined drafter is not opened: its errors must not keep the engine from starting.
        if [Kind.DRAFTER, choice.name] not in config.quarantined:
            raise
        return 0


def _needed(
    choice: StrategyChoice,
    config: EngineConfig,
    host: PluginHost,
    spec: ServableSpec,
    dtype: torch.dtype,
) -> int:
    drafter = host.strategy(Kind.DRAFTER, choice.name, choice.settings)
    if not isinstance(drafter, ModelDrafter):
        return 0
    folder = Path(drafter.checkpoint(config.model))
    if not folder.is_dir():
        return 0  # the drafter itself reports what is missing
    return draft_bytes_needed(folder, config.max_running, spec.max_model_len, dtype)


def _drafter_weights(config: EngineConfig, host: PluginHost) -> int:
    """Return the bytes of the drafter's weights: those of its model, or of its heads."""
    choice = config.drafter
    if choice is None:
        return 0
    drafter = host.strategy(Kind.DRAFTER, choice.name, choice.settings)
    if isinstance(drafter, ModelDrafter):
        return draft_weight_bytes(Path(drafter.checkpoint(config.model)))
    folder = heads_folder(choice.settings.get("heads", ""), choice.name, config.model)
    return draft_weight_bytes(folder)


def _num_pages(
    config: EngineConfig, spec: ServableSpec, each: int, kv_bytes: int, draft_reserve: int
) -> int:
    if not 1 <= config.page_size <= 256:
        raise EngineConfigError(f"page_size is {config.page_size}; it can be 1 to 256")
    if config.kv_pages is not None:
        if config.kv_pages < 1:
            raise EngineConfigError(f"kv_pages is {config.kv_pages}; it must be at least 1")
        return config.kv_pages
    # More pages than all rows together can fill would only waste memory.
    most = config.max_running * -(-spec.max_model_len // config.page_size)
    fit = (kv_bytes - draft_reserve) // each
    if fit < 1:
        others = ""
        if config.draft_bytes:
            others = f", of which draft_memory is {draft_reserve}; raise one, or lower the other"
        elif draft_reserve:
            others = (
                f", of which the draft model needs {draft_reserve} for {config.max_running} "
                "sequences of the longest context; raise kv_memory, or set draft_memory for "
                "shorter ones"
            )
        raise EngineConfigError(
            f"a KV page of this model takes {each} bytes; kv_memory is {kv_bytes}{others}"
        )
    return int(min(fit, most))


def _plugin_model(
    config: EngineConfig,
    plugin: PluginBackend,
    dtype: torch.dtype,
    parts: LayerParts,
    progress: Callable[[str, float], None],
    quantizer: Quantizer | None,
) -> ServableModel:
    def report(part: float) -> None:
        progress("loading weights", part)

    folder = Path(config.model)
    weights = PluginWeights(folder, dtype, config.device, parts, quantizer, report)
    model = load_plugin_model(plugin.watched, plugin.spec, weights)
    if quantizer is not None:
        quantizer.warn_unmatched()
    _log.info("model weights: %s", mib(model.weight_bytes))
    return model


def _decoder(
    config: EngineConfig,
    checkpoint: Checkpoint | None,
    spec: ModelSpec,
    dtype: torch.dtype,
    parts: LayerParts,
    progress: Callable[[str, float], None],
    quantizer: Quantizer | None,
    form: PoolFormat | None,
) -> ServableModel:
    stage = "making dummy weights" if config.dummy_weights else "loading weights"

    def report(part: float) -> None:
        progress(stage, part)

    if checkpoint is None:
        model = dummy(spec, dtype, config.device, config.seed, report, parts, quantizer)
    else:
        is_plain = form is not None and form.is_plain
        scales = checkpoint.kv_scales(is_plain=is_plain)
        model = read(checkpoint, dtype, config.device, report, parts, quantizer, scales)
    if quantizer is not None:
        quantizer.warn_unmatched()
    _log.info("model weights: %s", mib(model.weight_bytes))
    return model
