"""Authentication of requests: API keys and the Host header.

Everything but health checks requires a key. The decision depends on the path alone, before any
route is looked up, so that new routes are closed by default.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest

from gatewayd.errors import (
    GatewayError,
    HostNotAllowed,
    InvalidRequest,
    TooManyWrongKeys,
    Unauthorized,
)
from gatewayd.http.asgi import Receive, Scope, Send, header
from gatewayd.http.rights import Rights
from gatewayd.http.server.client_address import subscriber
from gatewayd.http.server.request_gate import RequestGate
from gatewayd.http.server.wrong_key_limit import FREE, WrongKeyLimiter
from gatewayd.tenants.directory import Directory
from gatewayd.tenants.principal import IN_SCOPE, OPERATOR, Principal
from gatewayd_engine.process.logs import MessageThrottle

_log = logging.getLogger(__name__)

PUBLIC = frozenset(("/livez", "/readyz", "/health"))

# RFC 3986: a name, an IPv4 address or a bracketed IPv6 address, and a port.
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_IPV4 = re.compile(rb"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


class KeyCheck:
    """Authenticates requests; compares digests of keys in constant time."""

    def __init__(self, api_key: str | None, directory: Directory | None = None) -> None:
        """Create a check of the given keys.

        Args:
            api_key: the operator's; None disables authentication while no other keys exist.
            directory: of tenants' keys; None without tenants.
        """
        # Digests have equal lengths: comparing them reveals not even the key's length.
        self._digest = None if api_key is None else sha256(api_key.encode()).digest()
        self._directory = directory
        self._wrong_keys, self._throttle = WrongKeyLimiter(), MessageThrottle()

    @property
    def is_open(self) -> bool:
        """Whether authentication is disabled because no keys exist."""
        return self._digest is None and (self._directory is None or not self._directory.has_keys)

    def check(self, scope: Scope) -> Principal:
        """Authenticate by the key in ``authorization: Bearer`` or ``x-api-key``.

        Raises:
            Unauthorized: the key is missing or invalid.
            TooManyWrongKeys: the key is invalid, like many before it from the same address.
        """
        try:
            return self._found(scope)
        except Unauthorized as error:
            # A missing key has another code, and is no attempt to find one.
            if error.code == Unauthorized.code:
                self._check_wrong_keys(scope)
            raise

    def _check_wrong_keys(self, scope: Scope) -> None:
        client = scope.get("client")
        address = None if client is None else client[0]
        if seconds := self._wrong_keys.record_wrong_key(address):
            if self._throttle.should_log(subscriber(address or "")):
                _log.warning("more than %d invalid API keys from %s", FREE, address)
            raise TooManyWrongKeys(
                f"the API key is not valid, after {FREE} other invalid keys from this address: "
                f"invalid keys are refused for {seconds:.0f} s, valid keys are accepted",
                retry_after=seconds,
            )

    def _found(self, scope: Scope) -> Principal:
        directory = self._directory
        operator = OPERATOR if directory is None else directory.operator
        if self.is_open:
            return operator
        given = header(scope, b"x-api-key")
        authorization = header(scope, b"authorization")
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            given = authorization[7:].strip()
        if given is None:
            raise Unauthorized(
                "no API key: send 'authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="missing_api_key",
            )
        if self._digest is not None and compare_digest(sha256(given).digest(), self._digest):
            return operator
        if directory is None:
            raise Unauthorized("the API key is not valid")
        return directory.authenticate(given)


def wants_details(scope: Scope) -> bool:
    """Whether a health check asks for details with ``verbose=1``."""
    return b"verbose=1" in scope["query_string"].split(b"&")


class AuthenticationMiddleware:
    """Authentication and authorization in front of the request gate, which also counts refusals."""

    def __init__(
        self, gate: RequestGate, keys: KeyCheck, rights: Rights, *, only_local_hosts: bool
    ) -> None:
        """Create a guard in front of a gate.

        Args:
            gate: called with accepted requests.
            keys: authenticates requests.
            rights: required by each path.
            only_local_hosts: while authentication is disabled, refuse host names that may be
                registered on the internet.
        """
        self._gate = gate
        self._keys = keys
        self._rights = rights
        self._only_local_hosts = only_local_hosts

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Accept or refuse a request, synchronously.

        Raises:
            RateLimited: it is refused, and its tenant's request limit is used up.
        """
        if scope["type"] == "http":
            is_public = scope["path"] in PUBLIC and not wants_details(scope)
            if is_public:
                _host(scope)
            else:
                _strip_trailing_slash(scope)
                # Also for the edge, which raises the buffer limits of authenticated connections.
                principal = scope[IN_SCOPE] = self._keys.check(scope)
                try:
                    self._check(principal, scope)
                except GatewayError:
                    # Otherwise refused requests would not count against the tenant's limits.
                    self._gate.count_refused(principal, scope)
                    raise
        return self._gate(scope, receive, send)

    def _check(self, principal: Principal, scope: Scope) -> None:
        """Check rights and host of a request whose key is valid."""
        if not principal.is_free:
            self._rights.check(principal, scope["path"])
        host = _host(scope)
        if self._only_local_hosts and not _is_local(host) and self._keys.is_open:
            raise HostNotAllowed(
                f"without an API key this server answers only to local names, not to "
                f"{host.decode()!r}: use 127.0.0.1 or localhost, or set server.api_key"
            )


def _strip_trailing_slash(scope: Scope) -> None:
    """Remove a trailing slash, which many clients append to their base URL or to every path.

    This happens before the rights are looked up, so that they are those of the matching route.
    """
    path = scope["path"]
    if len(path) > 1 and path.endswith("/"):
        scope["path"] = path[:-1]


def check_origin(scope: Scope) -> None:
    """Refuse cross-origin requests of browsers.

    For routes that accept requests which browsers send without a CORS preflight, such as forms.

    Raises:
        HostNotAllowed: the origin is not a local name.
    """
    origin = header(scope, b"origin")
    if origin is None:
        return
    host = origin.partition(b"://")[2]  # empty for the origin "null"
    if not host or not _is_local(host):
        raise HostNotAllowed(
            f"without an API key this server accepts no files from pages of "
            f"{origin[:128].decode('latin-1')!r}"
        )


def _host(scope: Scope) -> bytes:
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if not hosts and scope.get("http_version") == "1.0":
        return b""
    # RFC 9112, section 3.2: HTTP/1.1 requires exactly one.
    if len(hosts) != 1 or not _is_host(hosts[0]):
        raise InvalidRequest("the host header is missing or not a host", code="invalid_host")
    return bytes(hosts[0])


# Clients repeat the same host; bounded, since any client may send any.
@lru_cache(maxsize=64)
def _is_host(value: bytes) -> bool:
    return len(value) <= 255 and _HOST.fullmatch(value) is not None


@lru_cache(maxsize=64)
def _is_local(value: bytes) -> bool:
    """Whether a host cannot be a public DNS name.

    With DNS rebinding, a web page's own name is made to resolve to 127.0.0.1, so that browsers on
    this machine send its requests here. Addresses and names without a dot are not affected.
    """
    if value.startswith(b"["):
        return True
    name = value.partition(b":")[0].rstrip(b".").lower()
    return b"." not in name or name.endswith(b".localhost") or _IPV4.fullmatch(name) is not None
