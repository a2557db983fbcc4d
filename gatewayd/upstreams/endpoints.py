"""Endpoints of one upstream: the choice between them, and ejection of those that fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gatewayd.errors import UpstreamUnavailable

EJECTED_AFTER = 3
"""Failures in a row, without a success in between, after which an endpoint is ejected."""
LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
"""Time until the first probe of an ejected endpoint, doubled with each probe that fails."""


@dataclass(slots=True, eq=False)
class Endpoint:
    """One URL of an upstream with its circuit breaker.

    Attributes:
        index: within the upstream.
        url: to which paths are appended.
        num_running: requests in flight.
        num_failures: failures in a row.
        total_failures: since the start.
        is_ejected: whether the circuit is open: it gets probes and no requests.
        probe_seconds: time until the next probe after a failed one.
        reason: of the last failure.
    """

    index: int
    url: str
    num_running: int = 0
    num_failures: int = 0
    total_failures: int = 0
    is_ejected: bool = False
    probe_seconds: float = LEAST_SECONDS
    reason: str = ""


class Endpoints:
    """All endpoints of an upstream.

    Attributes:
        all: in the order of the configuration.

    Args:
        name: of the upstream.
        urls: of the endpoints, at least one.
        ejected: called with an endpoint when it is ejected, to probe it.
    """

    def __init__(self, name: str, urls: Sequence[str], ejected: Callable[[Endpoint], None]) -> None:
        self._name = name
        self._ejected = ejected
        self.all = [Endpoint(index, url) for index, url in enumerate(urls)]

    @property
    def is_ready(self) -> bool:
        """Whether any endpoint serves."""
        return any(not one.is_ejected for one in self.all)

    def pick(self, tried: Endpoint | None = None) -> Endpoint:
        """Return the endpoint with the fewest requests, another than one tried before if possible.

        Raises:
            UpstreamUnavailable: all are ejected.
        """
        ready = [one for one in self.all if not one.is_ejected]
        if not ready:
            raise UpstreamUnavailable(
                f"no endpoint of the upstream {self._name} serves ({self.all[0].reason}); it is "
                "used again as soon as one answers a probe",
                retry_after=min(one.probe_seconds for one in self.all),
            )
        others = [one for one in ready if one is not tried]
        return min(others or ready, key=lambda one: (one.num_running, one.num_failures))

    def succeeded(self, endpoint: Endpoint) -> None:
        """Record a response, or a probe that was answered."""
        endpoint.num_failures = 0
        endpoint.is_ejected = False
        endpoint.probe_seconds = LEAST_SECONDS

    def failed(self, endpoint: Endpoint, reason: str) -> None:
        """Record a failure; eject the endpoint after several in a row."""
        endpoint.num_failures += 1
        endpoint.total_failures += 1
        endpoint.reason = reason
        if endpoint.num_failures >= EJECTED_AFTER and not endpoint.is_ejected:
            endpoint.is_ejected = True
            self._ejected(endpoint)


def probe_delay(endpoint: Endpoint) -> float:
    """Return the seconds until the next probe, and double those until the one after it."""
    # Jittered, so that many gateways do not probe at the same time.
    seconds = endpoint.probe_seconds * random.uniform(0.75, 1.0)
    endpoint.probe_seconds = min(MOST_SECONDS, 2 * endpoint.probe_seconds)
    return seconds
