"""A model as a scheme serves it: its decoder, its pool, and attention over that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.attention.selection import Selection
from gatewayd_engine.attention.selective import SelectiveAttention
from gatewayd_engine.batch import StepBatch
from gatewayd_engine.bringing import open_bringers
from gatewayd_engine.config import ConfigError, EngineConfig
from gatewayd_engine.drafting import Target
from gatewayd_engine.heads import read_heads
from gatewayd_engine.kv.codec import Codec, Form, chosen_codec, form_of
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.checkpoint import Checkpoint
from gatewayd_engine.model.kv_scales import used_scales
from gatewayd_engine.model.loader import read
from gatewayd_engine.model.parts import PlainParts, with_brought
from gatewayd_engine.model.spec import ModelSpec, read_spec
from gatewayd_engine.pace import Pace
from gatewayd_engine.quantizing import open_quantizer
from gatewayd_engine.sequence import ALL_EXACT
from gatewayd_engine.threads import choose
from gatewayd_hooks.kv_codecs import KvCodecStrategy
from gatewayd_hooks.kv_compression import Selects
from gatewayd_hooks.ledger import Ledger
from gatewayd_hooks.loading import PluginHost
from gatewayd_hooks.resources import EngineResources, KvShape
from gatewayd_hooks.strategy import Kind

CHUNK = 512
"""Tokens that are computed at once, as an engine computes a prompt."""
_PROMPT, _STEPS, _WARM = 64, 48, 4


class Opened:
    """Computes one sequence after the other, as an engine would: in chunks, over its pool.

    Args:
        config: of the engine.
        host: loads its quantizer and its KV codec.
        longest: tokens of the longest sequence.

    Raises:
        ConfigError, SpecError, LoadError: it cannot be served.
        PluginError: a strategy cannot be loaded.
    """

    def __init__(self, config: EngineConfig, host: PluginHost, longest: int) -> None:
        if config.device != "cpu":
            raise ConfigError(f"device is {config.device}; quality is measured on a CPU only")
        dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
        folder = Path(config.model)
        spec = read_spec(folder, config.max_model_len)
        self._longest = min(max(longest, _PROMPT + _STEPS), spec.max_model_len)
        ledger = Ledger(config.strategy_budget_ms / 1000)
        with ExitStack() as opened:
            quantization = open_quantizer(config, host, ledger, spec)
            if quantization is not None:
                opened.callback(quantization.watched.close)
            bringers = open_bringers(config, host, ledger)
            for bringer in bringers:
                opened.callback(bringer.strategy.close)
            scheme = None if quantization is None else quantization.scheme
            quantize = None if quantization is None else quantization.quantize
            checkpoint = Checkpoint.open(folder, spec, scheme)
            form = form_of(config, host, spec.attention.head_dim, dtype, None)
            is_plain = form is not None and form.is_plain
            self._decoder = read(
                checkpoint,
                dtype,
                config.device,
                lambda done: None,
                with_brought(PlainParts(), bringers),
                quantize,
                used_scales(checkpoint.kv_scales(), is_plain=is_plain),
            )
            num_pages = -(-self._longest // config.page_size)
            codec = _open_codec(config, host, spec, dtype, form, opened)
            pool = KvPool(spec.attention, num_pages, config.page_size, dtype, config.device, codec)
            copy_bytes = pool.decoded_bytes * len(pool.data)
            compression = _open_compression(config, host, spec, opened)
            shape, is_steady = spec.attention, self._decoder.rounds_inputs
            self._attention = ReferenceAttention(shape, pool, 1, copy_bytes, is_steady=is_steady)
            if compression is not None:
                exact_until = np.full(1, ALL_EXACT, np.int32)
                no_prompt = np.zeros(1, np.int32)
                selection = Selection(shape, _Seat(compression), exact_until, no_prompt)
                self._attention = SelectiveAttention(
                    shape, pool, 1, copy_bytes, selection, is_steady=is_steady
                )
            self._opened = opened.pop_all()
        self._pace = Pace(choose(config.threads), torch.set_num_threads)
        self._table = np.arange(num_pages)[None]
        self._sequence = 0
        self.vocab_size = spec.vocab_size
        self.weight_bytes = self._decoder.weight_bytes
        self.kv_bytes_per_token = pool.data.nbytes / pool.data.shape[0] / config.page_size

    def close(self) -> None:
        """Close its strategies."""
        self._opened.close()

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> Iterator[torch.Tensor]:
        """Compute a new sequence; float32 ``[n, vocab]`` of each of its chunks.

        Raises:
            ConfigError: it is longer than the context.
        """
        if len(ids) > self._longest:
            raise ConfigError(
                f"a text has {len(ids)} tokens, but the context is {self._longest};"
                " give a larger max_model_len, or shorter texts"
            )
        self._sequence += 1
        for start in range(0, len(ids), CHUNK):
            yield self._computed(start, ids[start : start + CHUNK])

    @torch.inference_mode()
    def decoded(self, ids: list[int], begin: int) -> Iterator[torch.Tensor]:
        """The same, but the tokens from ``begin`` on are computed one by one, as answers are.

        Returns:
            Logits of those, float32 ``[1, vocab]`` each.
        """
        self._sequence += 1
        for start in range(0, begin, CHUNK):
            self._computed(start, ids[start : min(start + CHUNK, begin)])
        for place in range(begin, len(ids)):
            yield self._computed(place, [ids[place]])

    @torch.inference_mode()
    def decode_rate(self, ids: list[int]) -> float:
        """Tokens a second of one sequence that is continued greedily, by the median step."""
        prompt = ids[: min(_PROMPT, self._longest - _STEPS)]
        self._sequence += 1
        token = int(self._computed(0, prompt)[-1].argmax())
        seconds = []
        for place in range(len(prompt), min(len(prompt) + _STEPS, self._longest)):
            began = time.perf_counter()
            token = int(self._computed(place, [token])[0].argmax())
            seconds.append(time.perf_counter() - began)
        return 1 / median(seconds[_WARM:] or seconds)

    def _computed(self, start: int, ids: list[int]) -> torch.Tensor:
        """Logits of tokens behind the first ``start`` of the sequence, ``[n, vocab]``."""
        count = len(ids)
        places = np.arange(start, start + count)
        zero = np.zeros(1, np.int64)
        batch = StepBatch(
            slots=zero.astype(np.int32),
            rows=zero,
            sequences=np.array([self._sequence]),
            starts=np.array([start]),
            counts=np.array([count]),
            num_decode=int(count == 1),
            ids=np.array(ids, np.int64),
            places=places,
            positions=places,
            last=np.array([count - 1]),
            samples=np.ones(1, np.bool_),
            block_table=self._table,
            drafts=None,
        )
        self._pace.begin(count)
        self._attention.plan(batch)
        hidden = self._decoder.hidden(
            torch.from_numpy(batch.ids), torch.from_numpy(places), self._attention
        )
        logits = self._decoder.logits(hidden)
        self._pace.end()
        return logits


class _Seat:
    """A KV compression that is measured: its faults are told, not made up for."""

    def __init__(self, strategy: Any) -> None:  # noqa: ANN401 - of the kind
        self.selecting: Any | None = strategy

    def fail(self, error: BaseException) -> None:
        raise error


def _open_compression(
    config: EngineConfig, host: PluginHost, spec: ModelSpec, opened: ExitStack
) -> Any | None:  # noqa: ANN401 - of the kind
    """What selects places; closed with the rest. None for attention to all.

    Raises:
        ConfigError: it does not suit the model, or does not select.
        PluginError: it cannot be loaded.
    """
    choice, kind = config.kv_compression, Kind.KV_COMPRESSION
    if choice is None:
        return None
    strategy = host.strategy(kind, choice.name, choice.settings)
    target = Target(spec.hidden_size, torch.float32)
    try:
        strategy.open(
            replace(
                _resources(config, spec),
                kv_shape=KvShape(**asdict(spec.attention)),
                read_heads=lambda setting, name: read_heads(
                    setting, name, Path(config.model), target, spec.vocab_size, config.device
                ),
            )
        )
    except ValueError as error:
        raise ConfigError(
            f"kv_compression {choice.name} cannot serve this model: {error}"
        ) from error
    opened.callback(strategy.close)
    if not isinstance(strategy, Selects):
        raise ConfigError(f"kv_compression {choice.name} selects nothing; no other is measured")
    return strategy


def _open_codec(
    config: EngineConfig,
    host: PluginHost,
    spec: ModelSpec,
    dtype: torch.dtype,
    form: Form | None,
    opened: ExitStack,
) -> Codec | None:
    """What the pool is encoded with; closed with the rest. None for numbers as they are.

    Raises:
        ConfigError: it does not suit the model.
        PluginError: it cannot be loaded.
    """
    choice = chosen_codec(config)
    if form is None or choice is None:
        return None
    strategy: KvCodecStrategy = host.strategy(Kind.KV_CODEC, choice.name, choice.settings)
    strategy.open(_resources(config, spec))
    opened.callback(strategy.close)
    codec = Codec(strategy, form.record_bytes, spec.attention.head_dim, dtype)
    codec.try_out(choice.name)
    return codec


def _resources(config: EngineConfig, spec: ModelSpec) -> EngineResources:
    return EngineResources(
        num_pages=-(-spec.max_model_len // config.page_size),
        page_size=config.page_size,
        max_running=1,
        max_batch_tokens=CHUNK,
        max_model_len=spec.max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        device=config.device,
        slots=1,
        folder=config.model,
    )
