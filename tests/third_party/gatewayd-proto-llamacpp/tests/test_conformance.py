"""It keeps the contract of its kind; what is particular to it is yours to add."""

from gatewayd_hooks.protocols import HttpRequest, ProtocolStrategy
from gatewayd_hooks.testing.fake_gateway import request
from gatewayd_hooks.testing.protocols import ProtocolConformance

from gatewayd_proto_llamacpp.config import LlamaCppSettings
from gatewayd_proto_llamacpp.strategy import LlamaCpp


class TestLlamaCpp(ProtocolConformance):
    """What every plugin of its kind must do."""

    def make(self) -> ProtocolStrategy:
        """Build one with its default settings."""
        return LlamaCpp(LlamaCppSettings())

    def conversations(self) -> list[HttpRequest]:
        """A whole answer and a stream."""
        return [
            request("POST", "/completion", b'{"prompt": "Why?"}'),
            request("POST", "/completion", b'{"prompt": "Why?", "stream": true}'),
        ]
