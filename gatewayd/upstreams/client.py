"""HTTP client of upstreams: pooled connections, and one retry before the first byte."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import aiohttp

from gatewayd.errors import UpstreamError, UpstreamTimeout, UpstreamUnavailable
from gatewayd.upstreams.endpoints import Endpoint, Endpoints
from gatewayd.upstreams.response import MOST_ANSWER_BYTES, BoundedResponse

_ELSEWHERE = frozenset((429, 500, 502, 503, 504, 529))
"""Statuses after which another endpoint is tried; none of these has begun an answer."""
_PAUSE_SECONDS = 0.1
_KEEP_ALIVE_SECONDS = 30.0


class UpstreamBroken(OSError):
    """No connection, or it broke before an answer; for strategies an ``OSError``.

    Attributes:
        error: for the client.
    """

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(error.message)
        self.error = error


def new_session(connect_seconds: float) -> aiohttp.ClientSession:
    """Create the pooled client of an upstream.

    Args:
        connect_seconds: time-out of a connection, with TLS.
    """
    return aiohttp.ClientSession(
        # No limit here: the upstream's concurrency is limited before.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"user-agent": "gatewayd", "accept-encoding": "identity"},
    )


class UpstreamExchange:
    """Implements ``gatewayd_hooks.upstreams.UpstreamHttp`` for one request.

    Attributes:
        endpoint: the present or last one; None before the first.
        response: the last one; None before it.
        is_sent: whether a request may have reached an endpoint.
        most_bytes: maximum length of an answer.
        began: called when an answer has begun that is no error; None for nothing.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoints: Endpoints,
        upstream: str,
        *,
        only: Endpoint | None = None,
    ) -> None:
        """Prepare an exchange.

        Args:
            session: the pooled client.
            endpoints: of the upstream.
            upstream: its name, for errors.
            only: the endpoint to use, for a probe; None to choose one and retry.
        """
        self._session = session
        self._endpoints = endpoints
        self._upstream = upstream
        self._only = only
        self._may_retry = only is None
        self.endpoint: Endpoint | None = None
        self.response: BoundedResponse | None = None
        self.is_sent = False
        self.most_bytes = MOST_ANSWER_BYTES
        self.began: Callable[[], None] | None = None

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> BoundedResponse:
        """See ``UpstreamHttp``."""
        response = await self._send("POST", path, body, headers)
        if self.began is not None and response.status < 400:
            self.began()
        return response

    async def get(self, path: str, headers: Mapping[str, str]) -> BoundedResponse:
        """See ``UpstreamHttp``."""
        return await self._send("GET", path, None, headers)

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> BoundedResponse:
        await self.close()  # a strategy may send a second request after a refusal
        endpoint = self._only or self._endpoints.pick()
        try:
            response = await self._attempt(endpoint, method, path, body, headers)
        except UpstreamBroken:
            other = self._retry_at(endpoint, same=True)
            if other is None:
                raise
        else:
            # A refusal is repeated elsewhere only: here it would be the same.
            other = self._retry_at(endpoint, same=False) if response.status in _ELSEWHERE else None
            if other is None:
                return response
            await self.close()
        if other is endpoint:
            await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))
        return await self._attempt(other, method, path, body, headers)

    def _retry_at(self, tried: Endpoint, *, same: bool) -> Endpoint | None:
        """Return the endpoint for a retry; None if there is none, or one was made already."""
        if not self._may_retry:
            return None
        try:
            other = self._endpoints.pick(tried)
        except UpstreamUnavailable:
            return None
        if other is tried and not same:
            return None
        self._may_retry = False
        return other

    async def _attempt(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> BoundedResponse:
        sent = dict(headers)
        if body is not None:
            sent["content-type"] = "application/json"
        self.endpoint = endpoint
        endpoint.num_running += 1
        self.is_sent = True
        try:
            response = await self._session.request(
                method, endpoint.url + path, data=body, headers=sent, allow_redirects=False
            )
        except TimeoutError as error:  # of the connection: others are the caller's
            self._leave()
            self.is_sent = False
            self._endpoints.failed(endpoint, "no connection in time")
            raise UpstreamBroken(
                UpstreamTimeout(
                    f"the upstream {self._upstream} accepted no connection within its "
                    "connect_seconds"
                )
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._leave()
            reason = _reason(error)
            self.is_sent = not isinstance(error, aiohttp.ClientConnectorError)
            self._endpoints.failed(endpoint, reason)
            text = f"the upstream {self._upstream} cannot be used: {reason}"
            raise UpstreamBroken(UpstreamError(text)) from error
        except BaseException:
            self._leave()
            raise
        self.response = BoundedResponse(response, self.most_bytes)
        if response.status >= 500:
            self._endpoints.failed(endpoint, f"it answered with status {response.status}")
        return self.response

    def succeeded(self) -> None:
        """Record that the endpoint answers."""
        if self.endpoint is not None:
            self._endpoints.succeeded(self.endpoint)

    def failed(self, reason: str) -> None:
        """Record that the endpoint failed within its answer."""
        if self.endpoint is not None:
            self._endpoints.failed(self.endpoint, reason)

    async def close(self, *, drains: bool = False) -> None:
        """Close the last response.

        Args:
            drains: whether to read its end, so that the connection can be used again.
        """
        response, self.response = self.response, None
        if response is None:
            return
        self._leave()
        if drains:
            await response.drain()
        else:
            response.close()

    def _leave(self) -> None:
        if self.endpoint is not None:
            self.endpoint.num_running -= 1


def _reason(error: Exception) -> str:
    """Describe a failure without URLs and headers, which may have secrets."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return "its TLS certificate or protocol is not accepted"
        case aiohttp.ClientConnectorDNSError():
            return "its name cannot be resolved"
        case aiohttp.ClientConnectorError():
            return "it refuses connections"
        case aiohttp.ClientConnectionError():
            return "it closed the connection without an answer"
    return "its answer is not HTTP"
