"""The codec of a pool: its strategy, called for one model's heads, and what a fault of it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_engine.process.plugin_faults import StrategyFault, blame
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.kv_codecs import KvCodecStrategy, PlainRecords
from gatewayd_hooks.strategy import Kind


class PoolFormat(NamedTuple):
    """How keys and values are kept.

    Attributes:
        record_bytes: of a key, or a value, of one head.
        element: the type of number that records are for whoever does not decode them.
        is_plain: they are plain e4m3, so that what is written may have a checkpoint's scales.
    """

    record_bytes: int
    element: torch.dtype | None
    is_plain: bool = False


class Codec:
    """Encodes to records, and decodes them.

    Raises from its methods StrategyFault, whatever the strategy raises: the pool is in its form, so
    nothing can take its place, and the engine ends.

    Args:
        strategy: open.
        record_bytes: of a key, or a value, of one head.
        head_dim: numbers of it.
        dtype: in which the engine computes.
    """

    __slots__ = ("_decode", "_dtype", "_encode", "_head_dim", "_room", "record_bytes")

    def __init__(
        self, strategy: KvCodecStrategy, record_bytes: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self._encode, self._decode = strategy.encode, strategy.decode
        self._head_dim, self._dtype = head_dim, dtype
        self.record_bytes = record_bytes
        none = torch.empty(0)
        self._room = none, none

    def round_trip(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Records of ``[n, heads, head_dim]``, and their numbers, until the next call.

        Tensors of the last call serve again: steps that decode have the same shape in each layer.
        """
        records, numbers = self._room
        if numbers.shape != values.shape:
            shape, device = (*values.shape[:-1], self.record_bytes), values.device
            records = torch.empty(shape, dtype=torch.uint8, device=device)
            numbers = torch.empty(values.shape, dtype=self._dtype, device=device)
            self._room = records, numbers
        with blame(Kind.KV_CODEC):
            self._encode(values, records)
            self._decode(records, numbers)
        return records, numbers

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Records of ``[n, heads, head_dim]``, uint8, shape ``[n, heads, record_bytes]``."""
        shape = (*values.shape[:-1], self.record_bytes)
        out = torch.empty(shape, dtype=torch.uint8, device=values.device)
        with blame(Kind.KV_CODEC):
            self._encode(values, out)
        return out

    def decode(self, records: torch.Tensor) -> torch.Tensor:
        """Numbers of ``[..., record_bytes]``, shape ``[..., head_dim]``."""
        shape = (*records.shape[:-1], self._head_dim)
        out = torch.empty(shape, dtype=self._dtype, device=records.device)
        with blame(Kind.KV_CODEC):
            self._decode(records, out)
        return out

    def try_out(self, name: str) -> None:
        """Encode and decode a head before anything is served.

        What is wrong here would fail all requests one by one, and nobody would be named for it.

        Args:
            name: of the strategy.

        Raises:
            ConfigError: it raises, or breaks its contract.
        """
        heads = torch.linspace(-4, 4, self._head_dim, dtype=self._dtype).view(1, 1, -1)
        try:
            blank = self.decode(torch.zeros(1, 1, self.record_bytes, dtype=torch.uint8))
            found = self.decode(self.encode(heads))
        except StrategyFault as fault:
            raise EngineConfigError(
                f"kv_codec {name} fails before anything is served: {fault.reason}"
            ) from fault
        if bool((blank != 0).any()):
            raise EngineConfigError(
                f"kv_codec {name} decodes zero bytes to other numbers than zeros"
            )
        if not bool(found.isfinite().all()):
            raise EngineConfigError(f"kv_codec {name} decodes finite numbers to what is not finite")


def chosen_codec(config: EngineConfig) -> StrategyChoice | None:
    """The codec of an engine's pool; None for one that is quarantined."""
    choice = config.kv_codec
    if choice is None or [Kind.KV_CODEC, choice.name] in config.quarantined:
        return None
    return choice


def form_of(
    config: EngineConfig,
    host: PluginHost,
    head_dim: int,
    dtype: torch.dtype,
    elements: Callable[[], tuple[torch.dtype, ...]] | None,
) -> PoolFormat | None:
    """How the chosen codec keeps a key, or a value, of one head; None without one.

    Args:
        config: of the engine.
        host: loads the strategy.
        head_dim: numbers of a key, and of a value.
        dtype: theirs.
        elements: says which numbers kernels of the device read; None where records are decoded.

    Raises:
        ConfigError: it does not suit the model, or the device.
        PluginError: it cannot be loaded.
    """
    choice = chosen_codec(config)
    if choice is None:
        return None
    strategy = host.strategy(Kind.KV_CODEC, choice.name, choice.settings)
    try:
        size = strategy.record_bytes(head_dim, dtype)
        element = strategy.element(dtype) if isinstance(strategy, PlainRecords) else None
    except Exception as error:
        raise EngineConfigError(
            f"kv_codec {choice.name} cannot serve this model: {error}"
        ) from error
    if not isinstance(size, int) or size < 1:
        raise EngineConfigError(f"kv_codec {choice.name} says that a record has {size!r} bytes")
    is_plain = element == torch.float8_e4m3fn
    if elements is None:
        return PoolFormat(size, None, is_plain)
    _check_element(config.device, choice.name, element, elements())
    if size != head_dim:
        raise EngineConfigError(f"kv_codec {choice.name} says that {head_dim} bytes are {size!r}")
    return PoolFormat(size, element, is_plain)


def _check_element(
    device: str, name: str, element: torch.dtype | None, elements: tuple[torch.dtype, ...]
) -> None:
    """Refuse records that kernels of a device cannot read.

    Raises:
        ConfigError: what to do instead.
    """
    if element in elements:
        return
    if element is None:
        raise EngineConfigError(
            f"kv_codec is {name!r} and device {device!r}, whose kernels read plain "
            'floats of 8 bits alone: fp8 writes such with [kv_codec.fp8] scale = "none"; or set '
            '[kv_codec] strategy to "none", or [engine] device to "cpu"'
        )
    mine, theirs = (
        ", ".join(map(str, some)).replace("torch.", "") for some in ([element], elements)
    )
    raise EngineConfigError(
        f"kv_codec {name} writes {mine}, and kernels of device {device!r} {theirs} alone: GPUs have"
        ' e4m3 from compute capability 8.9 on; set [kv_codec.fp8] format to "e5m2", or [kv_codec]'
        ' strategy to "none"'
    )
