"""The KV compressions built in keep the contract, and select what they say."""

from __future__ import annotations

from gatewayd_hooks.kv_compression import KvCompressionStrategy
from gatewayd_hooks.testing.kv_compression import KvCompressionConformance
from gatewayd_kvc_heavy.config import HeavyConfig
from gatewayd_kvc_heavy.strategy import Heavy


class TestHeavy(KvCompressionConformance):
    def make(self) -> KvCompressionStrategy:
        return Heavy(HeavyConfig())
