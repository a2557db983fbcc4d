"""Who sends a request: made from a key's row and nothing else, and passed on with the request."""

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
"""Of a key that is made without saying which."""


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
        why: makes the error for requests then.
    """

    __slots__ = ("_ends", "is_over", "why")

    def __init__(self) -> None:
        self.is_over = False
        self.why = revoked
        self._ends: set[Callable[[], None]] = set()

    def add(self, end: Callable[[], None]) -> None:
        """Call this when it ends."""
        self._ends.add(end)

    def discard(self, end: Callable[[], None]) -> None:
        """Do not call it any more."""
        self._ends.discard(end)

    def end(self, why: Callable[[], Unauthorized]) -> None:
        """End it: whatever runs with it is cancelled now."""
        if self.is_over:
            return
        self.is_over, self.why = True, why
        ends, self._ends = self._ends, set()
        call_all(ends, _log, "a request of an ended key could not be cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who sends a request.

    Attributes:
        tenant: whose everything is that it makes or finds.
        scopes: its rights.
        key_id: of its key; None for the operator, and for everybody where there are no keys.
        lease: ends with its key, or with the secret of it that was sent.
        account: counts what it uses; None where nobody counts.
    """

    tenant: str
    scopes: frozenset[str]
    key_id: str | None = None
    lease: Lease | None = None
    account: TenantAccount | None = None
    is_free: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_free", EVERYTHING in self.scopes)

    @property
    def grant(self) -> Grant | None:
        """The rights of its tenant; None for all: the operator, or a server without keys.

        Read at each request: a change is in force at once.
        """
        if self.key_id is None or self.account is None:
            return None
        return self.account.terms.grant

    def check(self, scope: str) -> None:
        """Look for a right.

        Raises:
            PermissionDenied: it is not there.
        """
        if self.is_free or scope in self.scopes:
            return
        if scope == INFER and any(one.startswith("infer:") for one in self.scopes):
            return
        raise PermissionDenied(f"this API key lacks the scope {scope}; ask for one that has it")

    def check_use(self, model: str) -> None:
        """Look for the right to use a model, now.

        Raises:
            PermissionDenied: it is not there.
            Unauthorized: the key has ended since the request arrived.
        """
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
            return models  # it may use none, and reads the list for others
        return [model for model in models if f"infer:{model}" in self.scopes]


OPERATOR = Principal(tenant=DEFAULT_TENANT, scopes=frozenset((EVERYTHING,)))
"""Who has the configured key, or anybody where there are none."""

_current: ContextVar[Principal] = ContextVar("gatewayd.principal", default=OPERATOR)


def current_principal() -> Principal:
    """The sender of the request that this task works on; the operator by default."""
    return _current.get()


def set_current_principal(principal: Principal) -> None:
    """Set the sender of the request that this task works on."""
    _current.set(principal)


def principal_of(scope: MutableMapping[str, Any]) -> Principal:
    """Who sends a request.

    Raises:
        Unauthorized: nobody has looked.
    """
    principal: Principal | None = scope.get(IN_SCOPE)
    if principal is None:
        raise Unauthorized("no API key", code="missing_api_key")
    return principal
