"""KV codecs of a stranger: one whose records are plain e4m3, and one that miscounts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gatewayd_hooks.catalog import Catalog, Entry
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo

_MOST = 448.0


def catalog() -> Catalog:
    """What is installed, and these."""
    ours = [
        Entry("kv_codec", name, "gatewayd-kv-plain8", "1.0", __name__)
        for name in ("plain8", "wide8")
    ]
    return Catalog([*ours, *Catalog.installed().entries])


class Plain8:
    """Numbers as e4m3, those beyond its largest as that."""

    spare = 0

    def __init__(self, config: StrategyConfig) -> None:
        """It has nothing to set."""

    def open(self, resources: Any) -> None:
        """See ``KvCodecStrategy``."""

    def close(self) -> None:
        """See ``KvCodecStrategy``."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        return head_dim + self.spare

    def element(self, dtype: torch.dtype) -> torch.dtype | None:
        """See ``PlainRecords``."""
        return torch.float8_e4m3fn

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        codes = values.float().clamp(-_MOST, _MOST).to(torch.float8_e4m3fn)
        out.copy_(codes.view(torch.uint8))

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        out.copy_(records.contiguous().view(torch.float8_e4m3fn))


class Wide8(Plain8):
    """Says that its records are longer than their numbers."""

    spare = 2


@hookimpl
def gatewayd_kv_codecs() -> Sequence[StrategyInfo[Any]]:
    """Offer both."""
    return [
        StrategyInfo(
            name=name,
            config_type=StrategyConfig,
            build=kind,
            summary="A test's.",
            requires_spec=">=1.16,<2",
        )
        for name, kind in (("plain8", Plain8), ("wide8", Wide8))
    ]
