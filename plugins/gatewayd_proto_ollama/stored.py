"""Models of the gateway's store: ``/api/pull`` and ``/api/delete``, and their part of the lists."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial

import msgspec

from gatewayd_hooks.protocols import (
    Gateway,
    Handler,
    HttpRequest,
    HttpResponse,
    PullProgress,
    RequestRefusal,
    StoredModel,
)
from gatewayd_hooks.requests.checking import check
from gatewayd_proto_ollama.answers import stamp
from gatewayd_proto_ollama.models import Fields, shown_name, tags
from gatewayd_proto_ollama.tables import DeleteRequest, PullRequest

_encode = msgspec.json.Encoder().encode

_SHA256_LENGTH = 64
_SHOWN_DIGITS = 12
_LATEST = ":latest"
_ADDRESSES = ("https://", "hf:", "huggingface.co/", "hf.co/")
"""Beginnings of names that a pull takes, too."""


async def listed(gateway: Gateway) -> Fields:
    """List served models, then others of the store."""
    found: Fields = tags(gateway)
    served = {shown_name(name) for name in gateway.models}
    rows = [_row(model) for model in await gateway.stored_models()]
    found["models"] += [row for row in rows if row["name"] not in served]
    return found


async def find_stored(gateway: Gateway, name: str) -> StoredModel | None:
    """Return a model of the store by a name as for a pull, in any case; None if there is none."""
    wanted = name.removesuffix(_LATEST)
    for beginning in _ADDRESSES:
        wanted = wanted.removeprefix(beginning)
    wanted = wanted.lower()
    models = await gateway.stored_models()
    return next((one for one in models if one.name.lower() == wanted), None)


def described(model: StoredModel) -> Fields:
    """Describe a model that is stored and not served."""
    info: Fields = {"general.architecture": model.family, "general.basename": model.name}
    if model.context_length:
        info[f"{model.family}.context_length"] = model.context_length
    return {
        "modelfile": f"FROM {model.name}\n",
        "parameters": "",
        "template": "",
        "license": "",
        "modified_at": stamp(model.modified),
        "details": _details(model),
        "model_info": info,
        "capabilities": ["completion"],
    }


def pulling(gateway: Gateway) -> Handler:
    """Return the handler of ``/api/pull``."""

    async def pull(request: HttpRequest) -> HttpResponse:
        asked, ignored = await gateway.read(request, partial(check, PullRequest))
        progress = gateway.pull_model(_name(asked.model or asked.name))
        if asked.stream is not False:
            return HttpResponse(
                _lines(progress),
                content_type="application/x-ndjson",
                headers={"cache-control": "no-cache"},
                ignored=ignored,
            )
        async with aclosing(progress):
            async for _ in progress:
                pass
        return HttpResponse(_encode({"status": "success"}), ignored=ignored)

    return pull


def deleting(gateway: Gateway) -> Handler:
    """Return the handler of ``/api/delete``."""

    async def delete(request: HttpRequest) -> HttpResponse:
        asked, ignored = await gateway.read(request, partial(check, DeleteRequest))
        await gateway.delete_model(_name(asked.model or asked.name))
        return HttpResponse(b"", ignored=ignored)

    return delete


async def _lines(progress: AsyncGenerator[PullProgress, None]) -> AsyncIterator[bytes]:
    # Closed when the client disconnects.
    async with aclosing(progress):
        async for one in progress:
            yield b"".join(_encode(status) + b"\n" for status in _statuses(one))


def _statuses(progress: PullProgress) -> list[Fields]:
    """Return Ollama's words for some progress."""
    if progress.stage == "listing":
        return [{"status": "pulling manifest"}]
    if progress.stage == "verifying":
        return [{"status": "verifying sha256 digest"}]
    if progress.stage == "done":
        return [{"status": "writing manifest"}, {"status": "success"}]
    digest = progress.digest
    kind = "sha256" if len(digest) == _SHA256_LENGTH else "sha1"
    return [
        {
            "status": f"pulling {digest[:_SHOWN_DIGITS]}",
            "digest": f"{kind}:{digest}",
            "total": progress.total,
            "completed": progress.completed,
        }
    ]


def _name(name: str | None) -> str:
    """Return a name without ``:latest``.

    Raises:
        Refusal: there is none.
    """
    if not name:
        raise RequestRefusal(
            400, "model is required", param="model", code="missing_required_parameter"
        )
    return name.removesuffix(_LATEST)


def _row(model: StoredModel) -> Fields:
    name = shown_name(model.name)
    return {
        "name": name,
        "model": name,
        "modified_at": stamp(model.modified),
        "size": model.size,
        "digest": model.digest,
        "details": _details(model),
    }


def _details(model: StoredModel) -> Fields:
    return {
        "parent_model": "",
        "format": model.format,
        "family": model.family,
        "families": [model.family] if model.family else [],
        "parameter_size": "",
        "quantization_level": model.dtype,
    }
