"""Builds an engine core from its configuration: model, pool, strategies."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.config import EngineConfig, StrategyChoice
from gatewayd_engine.core import EngineCore
from gatewayd_engine.drafting import Loaded, Target, bytes_beside, load_beside
from gatewayd_engine.heads import read_heads
from gatewayd_engine.kv.memory import Memory, mib
from gatewayd_engine.kv.pool import KvPool, page_bytes
from gatewayd_engine.messages import ModelInfo
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loader import dummy, load
from gatewayd_engine.model.spec import ModelSpec, read_spec
from gatewayd_engine.pace import Pace
from gatewayd_engine.runner import Runner
from gatewayd_engine.sampling.random import fork_seed
from gatewayd_engine.strategies import Strategies
from gatewayd_engine.threads import choose
from gatewayd_hooks.loading import PluginHost
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import ModelDrafter
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ConfigError(Exception):
    """The configuration asks for what cannot be; the sentence names the value and the limit."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A core and what it serves."""

    core: EngineCore
    info: ModelInfo


def assemble(
    config: EngineConfig, host: PluginHost, progress: Callable[[str, float], None]
) -> Engine:
    """Load the model and make the core.

    Args:
        config: what to build.
        host: loads the strategies.
        progress: told the stage and its fraction.

    Raises:
        ConfigError: sizes that do not fit one another.
        SpecError, LoadError: the checkpoint cannot be served.
        PluginError: a strategy cannot be loaded.
    """
    if config.device != "cpu":
        raise ConfigError(f"device is {config.device!r}; this version computes on cpu only")
    folder = Path(config.model)
    spec = read_spec(folder, config.max_model_len)
    dtype = _dtype(config)
    set_aside = config.draft_bytes
    if set_aside is None:
        set_aside = _set_aside(config, host, spec, dtype)
    num_pages = _num_pages(config, spec, dtype, set_aside)
    pool_bytes = num_pages * page_bytes(spec.attention, config.page_size, dtype)
    # Pages that were counted by hand may leave less.
    memory = Memory(max(config.kv_bytes - pool_bytes, set_aside))
    _log.info(
        "the KV pool has %s for %d pages; %s are left", mib(pool_bytes), num_pages, mib(memory.free)
    )
    # A sequence that fills the pool must still fit alone.
    max_model_len = min(spec.max_model_len, num_pages * config.page_size)
    if config.max_batch_tokens < 1 or config.max_running < 1:
        raise ConfigError("max_batch_tokens and max_running must be at least 1")
    target = Target(spec.hidden_size, dtype)
    resources = EngineResources(
        num_pages=num_pages,
        page_size=config.page_size,
        max_running=config.max_running,
        max_batch_tokens=config.max_batch_tokens,
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        device=config.device,
        slots=256,
        folder=str(folder),
        replica=config.replica,
        page_bytes=page_bytes(spec.attention, config.page_size, dtype),
        target=target,
        load_model=Loaded(
            partial(
                load_beside,
                max_running=config.max_running,
                max_model_len=max_model_len,
                dtype=dtype,
                device=config.device,
                make_pace=lambda: Pace(choose(config.threads), _use_threads),
                memory=memory,
            )
        ),
        read_heads=lambda setting, kind: read_heads(
            setting, kind, folder, target, spec.vocab_size, config.device
        ),
        # Asked long after the processors were made.
        forced=lambda row: strategies.processors.forced(row),
    )
    # Strategies first: a wrong name should not wait for gigabytes of weights.
    strategies = Strategies(config, host, resources)
    decoder = _decoder(config, folder, spec, dtype, progress)
    target.hold(decoder)
    pool = KvPool(spec.attention, num_pages, config.page_size, dtype, config.device)
    seed = config.seed or secrets.randbits(63)
    drawn = iter(range(1, 2**62))
    core = EngineCore(
        lambda rows, strategies: Runner(
            decoder,
            # As much again for dense copies as for pages: it is taken only as it is used.
            ReferenceAttention(spec.attention, pool, config.max_running, pool.data.nbytes),
            rows,
            strategies.processors,
            Pace(choose(config.threads), _use_threads),
        ),
        pool,
        strategies,
        max_running=config.max_running,
        max_batch_tokens=config.max_batch_tokens,
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        draw_seed=lambda: fork_seed(seed, next(drawn)),
    )
    info = ModelInfo(
        architecture=spec.architecture,
        num_parameters=decoder.num_parameters,
        dtype=str(dtype).removeprefix("torch."),
        device=config.device,
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=list(spec.eos_token_ids),
        num_pages=num_pages,
        page_size=config.page_size,
        max_running=config.max_running,
        max_batch_tokens=config.max_batch_tokens,
        strategies=strategies.names,
    )
    return Engine(core, info)


def _use_threads(count: int) -> None:
    """Let torch compute on so many; models that share a process have each their own number."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _dtype(config: EngineConfig) -> torch.dtype:
    name = config.dtype
    if name == "auto":
        name = "float32" if config.device == "cpu" else "bfloat16"
    if name not in _DTYPES:
        raise ConfigError(f"dtype is {name!r}; it can be auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _set_aside(config: EngineConfig, host: PluginHost, spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes of the KV memory that the drafter's model needs, also for one that is to come back."""
    choice = config.drafter
    if choice is None:
        return 0
    try:
        return _needed(choice, config, host, spec, dtype)
    except Exception:
        if [Kind.DRAFTER, choice.name] not in config.quarantined:
            raise
        return 0


def _needed(
    choice: StrategyChoice,
    config: EngineConfig,
    host: PluginHost,
    spec: ModelSpec,
    dtype: torch.dtype,
) -> int:
    drafter = host.strategy(Kind.DRAFTER, choice.name, choice.settings)
    if not isinstance(drafter, ModelDrafter):
        return 0
    folder = Path(drafter.checkpoint(config.model))
    if not folder.is_dir():
        return 0  # the drafter says better what is missing
    return bytes_beside(folder, config.max_running, spec.max_model_len, dtype)


def _num_pages(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, set_aside: int) -> int:
    if not 1 <= config.page_size <= 256:
        raise ConfigError(f"page_size is {config.page_size}; it can be 1 to 256")
    if config.kv_pages is not None:
        if config.kv_pages < 1:
            raise ConfigError(f"kv_pages is {config.kv_pages}; it must be at least 1")
        return config.kv_pages
    each = page_bytes(spec.attention, config.page_size, dtype)
    # More pages than all rows together can fill would only cost memory.
    most = config.max_running * -(-spec.max_model_len // config.page_size)
    fit = (config.kv_bytes - set_aside) // each
    if fit < 1:
        others = ""
        if config.draft_bytes:
            others = f", of which draft_memory is {set_aside}; raise one, or lower the other"
        elif set_aside:
            others = (
                f", of which the draft model needs {set_aside} for {config.max_running} sequences "
                "of the longest context; raise kv_memory, or set draft_memory for shorter ones"
            )
        raise ConfigError(
            f"a KV page of this model takes {each} bytes; kv_memory is {config.kv_bytes}{others}"
        )
    return int(min(fit, most))


def _decoder(
    config: EngineConfig,
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    progress: Callable[[str, float], None],
) -> Decoder:
    if config.dummy_weights:
        return dummy(
            spec, dtype, config.device, config.seed, lambda p: progress("making dummy weights", p)
        )
    return load(folder, spec, dtype, config.device, lambda part: progress("loading weights", part))
