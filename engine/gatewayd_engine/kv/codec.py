"""KV codec of a pool: a strategy bound to the model's heads, and validation of its format."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_engine.process.plugin_faults import StrategyFault, attribute_faults
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.kv_codecs import KvCodecStrategy, PlainRecords
from gatewayd_hooks.strategy import Kind


class PoolFormat(NamedTuple):
    """Storage format of keys and values.

    Attributes:
        record_bytes: size of a key, or a value, of one head.
        element: data type of the records for code that does not decode them; None if opaque.
        is_plain: whether records are plain e4m3, so that a checkpoint's scales may be applied.
    """

    record_bytes: int
    element: torch.dtype | None
    is_plain: bool = False


class Codec:
    """Encoder and decoder of keys and values.

    Its methods raise StrategyFault, whatever the strategy raises: the pool's contents depend on the
    codec, so it cannot be replaced, and the engine ends.

    Args:
        strategy: an opened codec.
        record_bytes: size of a key, or a value, of one head.
        head_dim: numbers of a key, and of a value.
        dtype: data type in which the engine computes.
    """

    __slots__ = ("_buffers", "_decode", "_dtype", "_encode", "_head_dim", "record_bytes")

    def __init__(
        self, strategy: KvCodecStrategy, record_bytes: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self._encode, self._decode = strategy.encode, strategy.decode
        self._head_dim, self._dtype = head_dim, dtype
        self.record_bytes = record_bytes
        none = torch.empty(0)
        self._buffers = none, none

    def round_trip(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode ``[n, heads, head_dim]``; return the records and their decoded numbers.

        Both are overwritten by the next call: decode steps have the same shape in each layer, so
        the buffers are reused.
        """
        records, numbers = self._buffers
        if numbers.shape != values.shape:
            shape, device = (*values.shape[:-1], self.record_bytes), values.device
            records = torch.empty(shape, dtype=torch.uint8, device=device)
            numbers = torch.empty(values.shape, dtype=self._dtype, device=device)
            self._buffers = records, numbers
        with attribute_faults(Kind.KV_CODEC):
            self._encode(values, records)
            self._decode(records, numbers)
        return records, numbers

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Encode ``[n, heads, head_dim]`` to uint8 records, ``[n, heads, record_bytes]``."""
        shape = (*values.shape[:-1], self.record_bytes)
        out = torch.empty(shape, dtype=torch.uint8, device=values.device)
        with attribute_faults(Kind.KV_CODEC):
            self._encode(values, out)
        return out

    def decode(self, records: torch.Tensor) -> torch.Tensor:
        """Decode records of shape ``[..., record_bytes]`` to ``[..., head_dim]``."""
        shape = (*records.shape[:-1], self._head_dim)
        out = torch.empty(shape, dtype=self._dtype, device=records.device)
        with attribute_faults(Kind.KV_CODEC):
            self._decode(records, out)
        return out

    def self_test(self, name: str) -> None:
        """Validate a codec on one head before anything is served.

        A codec that fails later would fail all requests one by one, without naming the cause.

        Args:
            name: name of the strategy.

        Raises:
            EngineConfigError: it raises, or breaks its contract.
        """
        heads = torch.linspace(-4, 4, self._head_dim, dtype=self._dtype).view(1, 1, -1)
        try:
            # Zeroed pages are read beyond a sequence's tokens, and a masked NaN is still a NaN.
            blank = self.decode(torch.zeros(1, 1, self.record_bytes, dtype=torch.uint8))
            found = self.decode(self.encode(heads))
        except StrategyFault as fault:
            raise EngineConfigError(
                f"kv_codec {name} fails its self-test: {fault.reason}"
            ) from fault
        if bool((blank != 0).any()):
            raise EngineConfigError(f"kv_codec {name} decodes zero bytes to nonzero numbers")
        if not bool(found.isfinite().all()):
            raise EngineConfigError(f"kv_codec {name} decodes finite numbers to non-finite ones")


def chosen_codec(config: EngineConfig) -> StrategyChoice | None:
    """Return the configured codec of the pool; None without one, or if it is quarantined."""
    choice = config.kv_codec
    if choice is None or [Kind.KV_CODEC, choice.name] in config.quarantined:
        return None
    return choice


def pool_format(
    config: EngineConfig,
    host: PluginHost,
    head_dim: int,
    dtype: torch.dtype,
    elements: Callable[[], tuple[torch.dtype, ...]] | None,
) -> PoolFormat | None:
    """Return the format of the configured codec; None without one.

    Args:
        config: engine configuration.
        host: loads the strategy.
        head_dim: numbers of a key, and of a value.
        dtype: data type of the numbers.
        elements: returns the data types that the device's kernels read; None where records are
            decoded.

    Raises:
        EngineConfigError: it does not support the model, or the device.
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
        raise EngineConfigError(f"kv_codec {choice.name} returned {size!r} bytes per record")
    is_plain = element == torch.float8_e4m3fn
    if elements is None:
        # Records are decoded before attention, so any format will do.
        return PoolFormat(size, None, is_plain)
    _check_element(config.device, choice.name, element, elements())
    # Kernels read one 8-bit float per number, without scales.
    if size != head_dim:
        raise EngineConfigError(
            f"kv_codec {choice.name} returned {size!r} bytes per record; it must be {head_dim}"
        )
    return PoolFormat(size, element, is_plain)


def _check_element(
    device: str, name: str, element: torch.dtype | None, elements: tuple[torch.dtype, ...]
) -> None:
    """Reject records that the kernels of a device cannot read.

    Raises:
        EngineConfigError: naming an alternative configuration.
    """
    if element in elements:
        return
    if element is None:
        raise EngineConfigError(
            f"kv_codec is {name!r}, but kernels of device {device!r} read only plain 8-bit floats: "
            'set [kv_codec.fp8] scale = "none" to write such; or set '
            '[kv_codec] strategy to "none", or [engine] device to "cpu"'
        )
    mine, theirs = (
        ", ".join(map(str, some)).replace("torch.", "") for some in ([element], elements)
    )
    raise EngineConfigError(
        f"kv_codec {name} writes {mine}, but kernels of device {device!r} read only {theirs}: GPUs"
        ' support e4m3 from compute capability 8.9 on; set [kv_codec.fp8] format to "e5m2", or'
        ' [kv_codec] strategy to "none"'
    )
