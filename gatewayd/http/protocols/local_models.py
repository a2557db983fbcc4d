"""Models of this machine for protocol plugins: for the operator, in the contract's types."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence

from gatewayd.errors import PermissionDenied
from gatewayd.http.protocols.answer import refusal_of
from gatewayd.http.services import Services
from gatewayd.hub.errors import STATUSES, HubError
from gatewayd.hub.pull_events import PullEvent
from gatewayd.hub.stored_models import StoreEntry
from gatewayd.tenants.principal import current_principal
from gatewayd_hooks.protocols import PullProgress, RequestRefusal, StoredModel


async def stored_models(services: Services) -> Sequence[StoredModel]:
    """See ``gatewayd_hooks.protocols.Gateway``."""
    if _refusal(services) is not None:
        return ()
    with _translated():
        return [_of_entry(entry) for entry in await services.local_models.list()]


def pull_model(services: Services, name: str) -> AsyncGenerator[PullProgress, None]:
    """See ``gatewayd_hooks.protocols.Gateway``."""
    _check_operator(services)
    with _translated():
        return _progress(services.local_models.pull(name))


async def delete_model(services: Services, name: str) -> None:
    """See ``gatewayd_hooks.protocols.Gateway``."""
    _check_operator(services)
    with _translated():
        await services.local_models.delete(name)


async def _progress(
    events: AsyncGenerator[PullEvent, None],
) -> AsyncGenerator[PullProgress, None]:
    # Closed with this generator, which ends the pull when the client disconnects.
    async with contextlib.aclosing(events) as following:
        with _translated():
            async for event in following:
                yield PullProgress(
                    event.stage, event.file, event.digest, event.total, event.completed
                )


def _check_operator(services: Services) -> None:
    """Check that the operator asks, not merely any client of a server without keys.

    Raises:
        RequestRefusal: it is another.
    """
    if (refusal := _refusal(services)) is not None:
        raise refusal_of(refusal)


def _refusal(services: Services) -> PermissionDenied | None:
    """Return why the store is not for the principal of the request; None if it is."""
    principal = current_principal()
    if not principal.is_free:
        return PermissionDenied("models are changed by the operator only")
    is_open = principal.key_id is None and services.api_key is None
    if is_open and not services.only_local_hosts:
        return PermissionDenied(
            "without an API key, models are changed only by clients of a loopback address: set"
            " server.api_key"
        )
    return None


def _of_entry(entry: StoreEntry) -> StoredModel:
    return StoredModel(
        name=str(entry.reference),
        size=entry.size,
        modified=int(entry.modified),
        digest=entry.digest,
        format=entry.format,
        family=entry.family,
        dtype=entry.dtype,
        context_length=entry.context_length,
    )


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate errors about models.

    Raises:
        RequestRefusal: there was one.
    """
    try:
        yield
    except HubError as error:
        status = STATUSES[error.code]
        kind = "invalid_request_error" if status < 500 else "server_error"
        raise RequestRefusal(status, str(error), type=kind, code=error.code) from error
