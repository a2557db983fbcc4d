"""Compute backends: a CPU with compiled kernels or torch, or a GPU with fused kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.fused import FusedAttention
from gatewayd_engine.attention.kv_selection import SelectingCompression, Selection
from gatewayd_engine.attention.select import device_attention
from gatewayd_engine.attention.sparse import SelectiveAttention
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.cpu.select import thread_team
from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.kernels.select import choose, eight_bit_floats
from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.cpu_parts import CompiledParts
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.device_parts import DeviceParts
from gatewayd_engine.model.fused.build import fused_step
from gatewayd_engine.model.parts import LayerParts, PlainParts
from gatewayd_engine.model.servable import ServableModel
from gatewayd_engine.process import threads
from gatewayd_engine.process.config import EngineConfig, EngineConfigError
from gatewayd_engine.process.thread_tuning import ThreadTuning
from gatewayd_engine.runner.cpu import Runner
from gatewayd_engine.runner.draft_model import RowModel
from gatewayd_engine.runner.gpu import memory
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, CudaCapture
from gatewayd_engine.runner.gpu.draft_model import DeviceRowModel
from gatewayd_engine.runner.gpu.drafter_graphs import DrafterLaunches
from gatewayd_engine.runner.gpu.runner import DeviceRunner
from gatewayd_engine.runner.gpu.tune_launches import choose_fusion, choose_launches
from gatewayd_engine.runner.gpu.warmup import warm
from gatewayd_engine.runner.step_runner import StepRunner
from gatewayd_engine.sampling.guides.processors import GuidedProcessors
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.tuning.matmul import STAGE
from gatewayd_engine.tuning.table import DeviceLost
from gatewayd_engine.tuning.tuner import Tuning, tuning_of
from gatewayd_hooks.resources import CaptureLaunches, DraftModel, Penalise, PenaltyColumns

Progress = Callable[[str, float], None]
_log = logging.getLogger(__name__)
_CPU_KV_BYTES = 1 << 30


class Backend(Protocol):
    """Factory of the components that execute an engine's steps.

    Attributes:
        parts: layer implementations of its decoder.
        dtype: default dtype of weights, keys and values.
        penalise: penalty kernel for logits processors; None to use torch's operations.
        tuning_file: path of the autotuning table; empty if it is not persisted.
        offered: compiles and captures drafters' launches; None on a CPU.
        elements: returns the 8-bit float dtypes that the device's attention can read in a KV pool;
            None if codecs' records are decoded before attention.
    """

    parts: LayerParts
    dtype: torch.dtype
    penalise: Penalise | None
    tuning_file: str
    offered: CaptureLaunches | None
    elements: Callable[[], tuple[torch.dtype, ...]] | None

    def kv_bytes(self, load: Callable[[], ServableModel]) -> int:
        """Return the memory for keys and values, in bytes.

        Args:
            load: loads the model, for backends that measure the memory it leaves.
        """

    def draft_parts(self) -> LayerParts:
        """Return the layer implementations for the decoder of a draft model."""

    def row_model(self, decoder: Decoder, max_running: int, max_model_len: int) -> DraftModel:
        """Return a draft model with ``max_running`` rows of ``max_model_len`` tokens."""

    def runner(
        self,
        decoder: ServableModel,
        pool: KvPool,
        rows: RunningBatch,
        processors: GuidedProcessors,
        compression: SelectingCompression,
    ) -> StepRunner:
        """Return the runner of the engine's steps, warmed up."""


class CpuBackend:
    """CPU backend: compiled kernels where the processor and the model have them, else torch.

    Args:
        config: configuration of the engine.
    """

    dtype = torch.float32
    penalise: Penalise | None = None
    tuning_file = ""
    offered: CaptureLaunches | None = None
    elements: Callable[[], tuple[torch.dtype, ...]] | None = None

    def __init__(self, config: EngineConfig) -> None:
        self._kv_bytes = config.kv_bytes
        self._copy_bytes = config.copy_bytes
        self._threads = threads.choose(config).threads
        self._team: ThreadTeam | None = None
        if config.cpu_kernels == "auto" and config.dtype in ("auto", "float32"):
            self._team = thread_team(self._threads)
        self.parts: LayerParts = PlainParts()
        if self._team is not None:
            is_rounded = config.cpu_activations == "int8"
            self.parts = CompiledParts(self._team, rounds_activations=is_rounded)

    def kv_bytes(self, load: Callable[[], ServableModel]) -> int:
        """See ``Backend``."""
        return _CPU_KV_BYTES if self._kv_bytes is None else self._kv_bytes

    def draft_parts(self) -> LayerParts:
        """See ``Backend``."""
        return self.parts

    def row_model(self, decoder: Decoder, max_running: int, max_model_len: int) -> DraftModel:
        """See ``Backend``."""
        # Thread tuning of its own: a token takes another time than one of the served model.
        return RowModel(
            decoder, max_running, max_model_len, self._pace(is_fused=self._team is not None)
        )

    def runner(
        self,
        decoder: ServableModel,
        pool: KvPool,
        rows: RunningBatch,
        processors: GuidedProcessors,
        compression: SelectingCompression,
    ) -> StepRunner:
        """See ``Backend``."""
        shape = decoder.spec.attention
        copy_bytes = self._copy_bytes
        if copy_bytes is None:
            # As much for dense copies as for pages, allocated on demand. Copies are decoded, so
            # they are larger than a pool with a codec; without a copy, pages are decoded each step.
            decoded = pool.decoded_bytes * (pool.num_pages + 1)
            copy_bytes = max(pool.data.nbytes, min(decoded, _CPU_KV_BYTES))
        selection = Selection(shape, compression, rows)
        attention = SelectiveAttention(
            *(shape, pool, len(rows.seed), copy_bytes, selection),
            is_steady=decoder.rounds_inputs,
            sinks=decoder.sinks,
        )
        fused = None
        if isinstance(decoder, Decoder) and pool.codec is None:
            fused = fused_step(decoder, pool.page_size)
        if fused is None:
            pace = self._pace(is_fused=False)
            return Runner(decoder, attention, pool, rows, processors, pace)
        planned = FusedAttention(attention, compression, selection, pool)
        pace = self._pace(is_fused=True)
        return Runner(decoder, planned, pool, rows, processors, pace, fused)

    def _pace(self, *, is_fused: bool) -> ThreadTuning:
        """Return the tuning of the threads of steps.

        Args:
            is_fused: whether the team computes nearly everything. Then torch keeps to the caller's
                thread: its idle threads spin for a while, on the processors of the team's.
        """
        team = self._team

        def use(count: int) -> None:
            own = 1 if is_fused else count
            # Models that share a process may each use another number.
            if torch.get_num_threads() != own:
                torch.set_num_threads(own)
            if team is not None:
                team.use(count)

        return ThreadTuning(self._threads, use)


class DeviceBackend:
    """GPU backend with fused kernels and CUDA graphs.

    Args:
        config: configuration of the engine.
        kernels: kernels of the device.
        capture: captures CUDA graphs, unless the configuration disables them.
        progress: receives the stage of the start-up and its fraction.
        tuning: autotuner; None leaves the choice of matrix products to torch.
    """

    dtype = torch.bfloat16

    def __init__(
        self,
        config: EngineConfig,
        kernels: Kernels,
        capture: Capture,
        progress: Progress,
        tuning: Tuning | None = None,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._capture = capture if config.capture == "auto" else None
        self._progress = progress
        self._tuning = tuning
        path = None if tuning is None else tuning.table.path
        self.tuning_file = "" if path is None else str(path)
        self._launches = DrafterLaunches(config.max_running)
        self.offered: CaptureLaunches | None = self._launches
        self._parts = DeviceParts(kernels)
        self.parts: LayerParts = self._parts.served
        self.penalise: Penalise | None = self._penalised
        self.elements: Callable[[], tuple[torch.dtype, ...]] | None
        self.elements = lambda: eight_bit_floats(torch.device(config.device))

    def _penalised(
        self,
        logits: torch.Tensor,
        index: torch.Tensor,
        rows: torch.Tensor,
        columns: PenaltyColumns,
    ) -> None:
        # One upload for both index arrays.
        lines, of = upload(torch.stack((index, rows)).numpy(), logits.device)
        self._kernels.penalise(logits, lines, of, columns)

    def kv_bytes(self, load: Callable[[], ServableModel]) -> int:
        """See ``Backend``.

        Raises:
            EngineConfigError: no memory is left.
        """
        config = self._config
        if config.kv_bytes is not None:
            return config.kv_bytes
        self._progress("measuring memory", 0.0)
        usage = memory.measure(
            load(),
            self._kernels,
            config.max_batch_tokens,
            config.max_running,
            captures=self._capture is not None,
            has_drafts=config.drafter is not None,
        )
        self._progress("measuring memory", 1.0)
        try:
            return memory.kv_cache_bytes(usage, config.gpu_memory_utilization)
        except memory.DoesNotFit as error:
            raise EngineConfigError(str(error)) from None

    def draft_parts(self) -> LayerParts:
        """See ``Backend``."""
        return self._parts.draft_parts()

    def row_model(self, decoder: Decoder, max_running: int, max_model_len: int) -> DraftModel:
        """See ``Backend``; compiled and captured with the engine's own steps at start-up.

        A model that is loaded later is not captured, as steps are running concurrently.
        """
        model = DeviceRowModel(decoder, self._kernels, max_running, max_model_len)
        if self._parts.is_starting:
            self._launches.add(model)
        return model

    def runner(
        self,
        decoder: ServableModel,
        pool: KvPool,
        rows: RunningBatch,
        processors: GuidedProcessors,
        compression: SelectingCompression,
    ) -> StepRunner:
        """See ``Backend``."""
        # Graphs that are captured from here on hold the address of the shared scratch: it must not
        # grow.
        self._parts.seal()
        tables = decoder.rotation_tables()
        append = Append(decoder.spec.attention, pool, self._kernels, tables)
        attention = device_attention(
            decoder.spec.attention,
            pool,
            append,
            self._kernels,
            max_lines=len(rows.seed),
            max_len=rows.tokens.shape[1],
            shares_prefixes=self._config.cascade_attention,
            tuning=self._tuning,
            sinks=decoder.sinks,
        )
        runner = DeviceRunner(
            decoder,
            attention,
            pool,
            rows,
            processors,
            self._kernels,
            self._config.max_batch_tokens,
            append,
        )
        # Last, because captures hold the addresses of the runner's persistent tensors.
        warm(
            runner,
            self._kernels,
            self._capture,
            self._progress,
            partial(self._choose, runner),
            has_drafts=self._config.drafter is not None,
            drafter=self._launches,
        )
        if decoder.device.type == "cuda":
            memory.log_free(decoder.device, self._config.gpu_memory_utilization)
        return runner

    def _choose(self, runner: DeviceRunner, sizes: list[int]) -> None:
        """Autotune kernels for the token counts that will be captured, if tuning is enabled."""
        tuning = self._tuning
        if tuning is None:
            return
        # Each stage times launches with the choices of the stages before it in effect, and fails
        # without affecting these.
        table, clock, fusion = tuning.table, tuning.clock, self._parts.served.fusion
        with _optional("autotuning of matmuls failed; torch's are used"):
            report = partial(self._progress, STAGE)
            tuning.choose_matmuls(self._parts.dense, sizes, report)
        with _optional("autotuning of kernel launches failed; the defaults are used"):
            choose_launches(runner, self._kernels, table, clock)
        with _optional("autotuning of fused norms and gates failed; the defaults are used"):
            choose_fusion(runner, fusion, sizes, table, clock)


def backend_for(config: EngineConfig, progress: Progress) -> Backend:
    """Return the backend of ``config.device``.

    Raises:
        EngineConfigError: the device does not exist.
    """
    if config.device == "cpu":
        return CpuBackend(config)
    device = torch.device(config.device)
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise EngineConfigError(
            f"device is {config.device!r}, but torch {torch.__version__} finds"
            f" {torch.cuda.device_count()} GPUs; install torch for CUDA and its driver, or take"
            " another device"
        )
    # Streams, events and graph pools that are created without a device belong to the current one.
    torch.cuda.set_device(device.index or 0)
    kernels, capture, tuning = choose(device), CudaCapture(device), None
    with _optional("autotuning is disabled after an error"):
        tuning = tuning_of(device)
    return DeviceBackend(config, kernels, capture, progress, tuning)


@contextmanager
def _optional(consequence: str) -> Iterator[None]:
    """Log an exception instead of raising it: autotuning must not keep an engine from starting.

    Args:
        consequence: what failed and what is used instead, for the log.

    Raises:
        DeviceLost: the device cannot be used any more.
    """
    try:
        yield
    except DeviceLost:
        raise
    except Exception:  # noqa: BLE001 - of any library and version
        _log.warning("%s", consequence, exc_info=True)
