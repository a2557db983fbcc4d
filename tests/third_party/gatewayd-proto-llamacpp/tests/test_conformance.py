"""It keeps the contract of its kind; what is particular to it is yours to add."""

from gatewayd_hooks.protocols import HttpRequest, ProtocolStrategy
from gatewayd_hooks.testing.fake_gateway import request
from gatewayd_hooks.testing.protocols import ProtocolConformance

from gatewayd_proto_tgi.config import TgiSettings
from gatewayd_proto_tgi.strategy import TgiProtocol


class TestTgiProtocol(ProtocolConformance):
    """What every plugin of its kind must do."""

    def make(self) -> ProtocolStrategy:
        """Build one with its default settings."""
        return TgiProtocol(TgiSettings())

    def conversations(self) -> list[HttpRequest]:
        """A whole answer and a stream."""
        return [
            request("POST", "/generate", b'{"inputs": "Why?"}'),
            request("POST", "/generate_stream", b'{"inputs": "Why?"}'),
        ]
