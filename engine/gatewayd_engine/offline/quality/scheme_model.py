"""Model under measurement: decoder, KV pool and attention of a scheme, as an engine has them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.kv_selection import Selection
from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.attention.sparse import SelectiveAttention
from gatewayd_engine.kernels.cpu.select import thread_team
from gatewayd_engine.kv.codec import Codec, PoolFormat, chosen_codec, pool_format
from gatewayd_engine.kv.compacted_prefix import CompactedPrefix, CompactedPrefixes
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.cpu_parts import CompiledParts
from gatewayd_engine.model.linears.matmul_plugins import open_matmul_plugins
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.parts import LayerParts, PlainParts, with_matmul_plugins
from gatewayd_engine.model.quantizer import open_quantizer
from gatewayd_engine.model.spec import ModelSpec, read_spec
from gatewayd_engine.offline.quality.kv_compression import MeasuredCompression, open_compression
from gatewayd_engine.process.config import EngineConfig, EngineConfigError
from gatewayd_engine.process.thread_tuning import ThreadTuning
from gatewayd_engine.process.threads import choose
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.kv_codecs import KvCodecStrategy
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.strategy import Kind

CHUNK = 512
"""Chunk size of prompts in tokens, as in an engine's chunked prefill."""
PROMPT = 64
"""Prompt length for measuring decoding speed, unless texts have prompts."""
_STEPS, _WARM = 48, 4


class SchemeModel:
    """A scheme's model, which computes sequences one at a time, in chunks, with a KV pool.

    Args:
        config: of the engine.
        host: loads the quantizer and the KV codec.
        longest: tokens of the longest sequence.
        prompt: tokens of the shortest prompt before decoding; 0 if there are none.

    Raises:
        EngineConfigError, SpecError, LoadError: the configuration cannot be served.
        PluginError: a strategy cannot be loaded.
    """

    def __init__(
        self, config: EngineConfig, host: PluginHost, longest: int, prompt: int = 0
    ) -> None:
        if config.device != "cpu":
            raise EngineConfigError(f"device is {config.device}; quality is measured on a CPU only")
        dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
        folder = Path(config.model)
        spec = read_spec(folder, config.max_model_len)
        # Enough for measuring the decoding speed, if texts are shorter.
        self._longest = min(max(longest, PROMPT + _STEPS), spec.max_model_len)
        plugin_times = PluginTimes(config.strategy_budget_ms / 1000)
        with ExitStack() as opened:
            quantization = open_quantizer(config, host, plugin_times, spec)
            if quantization is not None:
                opened.callback(quantization.watched.close)
            matmul_plugins = open_matmul_plugins(config, host, plugin_times)
            for plugin in matmul_plugins:
                opened.callback(plugin.strategy.close)
            scheme = None if quantization is None else quantization.scheme
            quantize = None if quantization is None else quantization.quantize
            checkpoint = Checkpoint.open(folder, spec, scheme)
            form = pool_format(config, host, spec.attention.head_dim, dtype, None)
            is_plain = form is not None and form.is_plain
            self._decoder = read(
                checkpoint,
                dtype,
                config.device,
                lambda done: None,
                with_matmul_plugins(_parts(config), matmul_plugins),
                quantize,
                checkpoint.kv_scales(is_plain=is_plain),
            )
            num_pages = -(-self._longest // config.page_size)
            codec = _open_codec(config, host, spec, dtype, form, opened)
            pool = KvPool(spec.attention, num_pages, config.page_size, dtype, config.device, codec)
            copy_bytes = pool.decoded_bytes * len(pool.data)
            compressed = _open_compression(config, host, spec, pool, prompt, opened)
            shape, sinks = spec.attention, self._decoder.sinks
            is_steady = self._decoder.rounds_inputs
            self._attention = ReferenceAttention(
                shape, pool, 1, copy_bytes, is_steady=is_steady, sinks=sinks
            )
            if compressed is not None and compressed.selecting is not None:
                selection = Selection(shape, compressed, compressed.row)
                self._attention = SelectiveAttention(
                    shape, pool, 1, copy_bytes, selection, is_steady=is_steady, sinks=sinks
                )
            # Until here an exception closes the strategies, from here on ``close`` does.
            self._opened = opened.pop_all()
        self._pace = ThreadTuning(choose(config).threads, torch.set_num_threads)
        self._table = np.arange(num_pages)[None]
        self._page_size = config.page_size
        self._sequence = 0
        self._compressed = compressed
        self._step_seconds: list[float] = []
        # Bytes of a page as stored, by a codec if there is one.
        self._bytes_per_token = pool.data.nbytes / pool.data.shape[0] / config.page_size
        self.vocab_size = spec.vocab_size
        self.weight_bytes = self._decoder.weight_bytes

    def close(self) -> None:
        """Close the strategies."""
        self._opened.close()

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache bytes per token, after compaction."""
        held = self._bytes_per_token
        return held if self._compressed is None else held * self._compressed.held_fraction

    @property
    def kv_read(self) -> float | None:
        """Fraction of keys and values that decoding reads; None without KV compression."""
        return None if self._compressed is None else self._compressed.read_fraction

    @property
    def note(self) -> str:
        """Caveat about the figures; empty for none."""
        compressed = self._compressed
        if compressed is None:
            return ""
        if compressed.held_fraction == compressed.read_fraction == 1:
            return "it has changed nothing: these contexts are too short for its settings"
        return compressed.note

    @torch.inference_mode()
    def logits(self, ids: list[int], begin: int = 0) -> Iterator[torch.Tensor]:
        """Compute a new sequence.

        With a KV compression, tokens from ``begin`` on are decoded one by one, unless it is 0.

        Returns:
            Logits of the tokens from ``begin`` on, in chunks of float32 ``[n, vocab]``.

        Raises:
            EngineConfigError: the sequence is longer than the context.
        """
        if len(ids) > self._longest:
            raise EngineConfigError(
                f"a text has {len(ids)} tokens, but the context is {self._longest};"
                " give a larger max_model_len, or shorter texts"
            )
        if self._compressed is not None and begin:
            block: list[torch.Tensor] = []
            for position, one in enumerate(self.decoded(ids, begin), begin + 1):
                block.append(one)
                # Blocks end where the chunks of a reference without compression end.
                if position % CHUNK == 0 or position == len(ids):
                    yield torch.cat(block)
                    block = []
            return
        self._start_sequence(len(ids))
        for start in range(0, len(ids), CHUNK):
            found = self._computed(start, ids[start : start + CHUNK])
            if start + len(found) > begin:
                yield found[max(begin - start, 0) :]

    @torch.inference_mode()
    def decoded(self, ids: list[int], begin: int) -> Iterator[torch.Tensor]:
        """Compute a new sequence: prefill up to ``begin``, then decode the rest token by token.

        Returns:
            Logits of the decoded tokens, float32 ``[1, vocab]`` each.
        """
        self._start_sequence(begin)
        for start in range(0, begin, CHUNK):
            self._computed(start, ids[start : min(start + CHUNK, begin)])
        compressed, front = self._compressed, None
        if compressed is not None:
            front = compressed.compact(ids[:begin], self._table[0], self._decoder.hidden)
        for position in range(begin, len(ids)):
            began = time.perf_counter()
            logits = self._computed(position, [ids[position]], front)
            self._step_seconds.append(time.perf_counter() - began)
            yield logits
        if compressed is not None:
            compressed.record_sequence(len(ids), front)

    @torch.inference_mode()
    def decode_rate(self, ids: list[int]) -> float:
        """Measure tokens per second of a single sequence, from the median step time.

        Uses the steps decoded so far if there are any, else continues ``ids`` greedily.
        """
        if self._step_seconds:
            return 1 / median(self._step_seconds)
        prompt = ids[: self._longest - _STEPS]
        self._start_sequence(len(prompt))
        token = int(self._computed(0, prompt)[-1].argmax())
        seconds = []
        for position in range(len(prompt), min(len(prompt) + _STEPS, self._longest)):
            began = time.perf_counter()
            token = int(self._computed(position, [token])[0].argmax())
            seconds.append(time.perf_counter() - began)
        # The first steps also gather the dense copy, and try numbers of threads.
        return 1 / median(seconds[_WARM:] or seconds)

    def _start_sequence(self, prompt: int) -> None:
        """Start a new sequence with a prompt of ``prompt`` tokens.

        The length is set before the first chunk: a last chunk of one token would otherwise count
        as a decoding step.
        """
        # A new id, so that no dense copy of the previous sequence is continued.
        self._sequence += 1
        if self._compressed is not None:
            self._compressed.row.decodes_from[:] = prompt

    def _computed(
        self, start: int, ids: list[int], front: CompactedPrefix | None = None
    ) -> torch.Tensor:
        """Compute tokens at positions from ``start`` on; return their logits, ``[n, vocab]``."""
        count = len(ids)
        positions = np.arange(start, start + count)
        zero = np.zeros(1, np.int64)
        batch = StepBatch(
            slots=zero.astype(np.int32),
            rows=zero,
            sequences=np.array([self._sequence]),
            starts=np.array([start]),
            counts=np.array([count]),
            num_decode=int(count == 1),
            ids=np.array(ids, np.int64),
            cache_positions=positions,
            positions=positions,
            last=np.array([count - 1]),
            samples=np.ones(1, np.bool_),
            block_table=self._table if front is None else self._shorter(front),
            drafts=None,
            fronts=None if front is None else CompactedPrefixes.make([front]),
        )
        self._pace.start_step(count)
        self._attention.plan(batch)
        hidden = self._decoder.hidden(
            torch.from_numpy(batch.ids), torch.from_numpy(positions), self._attention
        )
        logits = self._decoder.logits(hidden)
        self._pace.end_step()
        return logits

    def _shorter(self, front: CompactedPrefix) -> NDArray[np.int64]:
        """Return the block table of a sequence with a compacted prefix."""
        size = self._page_size
        kept, rest = self._table[:, : front.kept // size], self._table[:, front.covered // size :]
        return np.concatenate((kept, rest), 1)


def _parts(config: EngineConfig) -> LayerParts:
    """Return the products that an engine of this configuration computes on this CPU."""
    if config.cpu_kernels == "auto" and config.dtype in ("auto", "float32"):
        team = thread_team(choose(config).threads)
        if team is not None:
            return CompiledParts(team, rounds_activations=config.cpu_activations == "int8")
    return PlainParts()


def _open_compression(
    config: EngineConfig,
    host: PluginHost,
    spec: ModelSpec,
    pool: KvPool,
    prompt: int,
    opened: ExitStack,
) -> MeasuredCompression | None:
    """Open the configured KV compression and close it with ``opened``; None for full attention.

    Raises:
        EngineConfigError: it does not support the model.
        PluginError: it cannot be loaded.
    """
    found = open_compression(config, host, spec, pool, _resources(config, spec), prompt)
    if found is not None:
        opened.callback(found.close)
    return found


def _open_codec(
    config: EngineConfig,
    host: PluginHost,
    spec: ModelSpec,
    dtype: torch.dtype,
    form: PoolFormat | None,
    opened: ExitStack,
) -> Codec | None:
    """Open the configured KV codec and close it with ``opened``; None for an unencoded pool.

    Raises:
        EngineConfigError: it does not support the model.
        PluginError: it cannot be loaded.
    """
    choice = chosen_codec(config)
    if form is None or choice is None:
        return None
    strategy: KvCodecStrategy = host.strategy(Kind.KV_CODEC, choice.name, choice.settings)
    strategy.open(_resources(config, spec))
    opened.callback(strategy.close)
    codec = Codec(strategy, form.record_bytes, spec.attention.head_dim, dtype)
    codec.self_test(choice.name)
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
