"""Principal of a request: derived from an API key's row and passed on with the request."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatewayd.errors import PermissionDenied, Unauthorized
from gatewayd.runtime.callbacks import call_all
from gatewayd.store.tables import DEFAULT_TENANT

if TYPE_CHECKING:
    from gatewayd.tenants.account import TenantAccount
    from gatewayd.tenants.grants import Grant

_log = logging.getLogger(__name__)

IN_SCOPE = "gatewayd.principal"

EVERYTHING = "*"
INFER = "infer"
FILES = "files"
BATCHES = "batches"
MODELS = "models:read"
METRICS = "metrics:read"
SCOPES = (EVERYTHING, INFER, FILES, BATCHES, MODELS, METRICS)
"""Rights that a key may have; ``infer:MODEL`` is ``infer`` for one model."""

USUAL = (INFER, FILES, BATCHES, MODELS)
"""Default scopes of a new key."""


def revoked() -> Unauthorized:
    """The error for a revoked key."""
    return Unauthorized("the API key was revoked", code="key_revoked")


def rotated() -> Unauthorized:
    """The error for a request in progress whose secret was rotated out."""
    return Unauthorized("the API key was rotated: use its new secret", code="key_revoked")


def expired() -> Unauthorized:
    """The error for an expired key."""
    return Unauthorized("the API key has expired", code="key_expired")


class Lease:
    """The validity of a key, or of one of its secrets, with callbacks for its end.

    Attributes:
        is_over: whether it has ended.
        why: makes the error that requests get after its end.
    """

    __slots__ = ("_ends", "is_over", "why")

    def __init__(self) -> None:
        self.is_over = False
        self.why = revoked
        self._ends: set[Callable[[], None]] = set()

    def add(self, end: Callable[[], None]) -> None:
        """Register a callback for its end."""
        self._ends.add(end)

    def discard(self, end: Callable[[], None]) -> None:
        """Unregister a callback."""
        self._ends.discard(end)

    def end(self, why: Callable[[], Unauthorized]) -> None:
        """End the lease and cancel the requests that hold it."""
        if self.is_over:
            return
        self.is_over, self.why = True, why
        # Taken out first: a callback may discard itself, which would change the set.
        ends, self._ends = self._ends, set()
        call_all(ends, _log, "a request of an ended key could not be cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Authenticated sender of a request.

    Attributes:
        tenant: owner of the resources that it may access.
        scopes: its rights.
        key_id: id of its key; None for the operator, and for all clients where there are no keys.
        lease: ends with its key, or with the secret that was sent.
        account: counts its usage; None if usage is not counted.
    """

    tenant: str
    scopes: frozenset[str]
    key_id: str | None = None
    lease: Lease | None = None
    account: TenantAccount | None = None
    is_free: bool = field(init=False)

    def __post_init__(self) -> None:
        # Computed once, since it is read for each check; the dataclass is frozen.
        object.__setattr__(self, "is_free", EVERYTHING in self.scopes)

    @property
    def grant(self) -> Grant | None:
        """The rights of its tenant; None for all: the operator, or a server without keys.

        Read at each request, so that a change takes effect at once.
        """
        if self.key_id is None or self.account is None:
            return None
        return self.account.terms.grant

    def check(self, scope: str) -> None:
        """Check for a scope.

        Raises:
            PermissionDenied: the scope is missing.
        """
        if self.is_free or scope in self.scopes:
            return
        # A key for one model passes here; `check_use` compares the model once it is known.
        if scope == INFER and any(one.startswith("infer:") for one in self.scopes):
            return
        raise PermissionDenied(f"this API key lacks the scope {scope}; ask for one that has it")

    def check_use(self, model: str) -> None:
        """Check for the right to use a model now.

        Raises:
            PermissionDenied: the scope is missing.
            Unauthorized: the key has ended since the request arrived.
        """
        # The key may have ended while the request waited or its body was read.
        if self.lease is not None and self.lease.is_over:
            raise self.lease.why()
        if not (self.is_free or INFER in self.scopes or f"infer:{model}" in self.scopes):
            raise PermissionDenied(
                f"this API key lacks the scope infer:{model}; ask for one that has it",
                param="model",
            )

    def visible(self, models: Sequence[str]) -> Sequence[str]:
        """The models in its scope: all, unless its key names models."""
        if self.is_free or INFER in self.scopes:
            return models
        if not any(one.startswith("infer:") for one in self.scopes):
            return models  # it may use none, and may list all
        return [model for model in models if f"infer:{model}" in self.scopes]


OPERATOR = Principal(tenant=DEFAULT_TENANT, scopes=frozenset((EVERYTHING,)))
"""The principal of the configured key, and of every client if there are no keys."""

_current: ContextVar[Principal] = ContextVar("gatewayd.principal", default=OPERATOR)


def current_principal() -> Principal:
    """The sender of the request that this task works on; the operator by default."""
    return _current.get()


def set_current_principal(principal: Principal) -> None:
    """Set the sender of the request that this task works on."""
    _current.set(principal)


def principal_of(scope: MutableMapping[str, Any]) -> Principal:
    """Return the authenticated sender of a request.

    Raises:
        Unauthorized: the request was not authenticated.
    """
    principal: Principal | None = scope.get(IN_SCOPE)
    if principal is None:
        raise Unauthorized("no API key", code="missing_api_key")
    return principal
