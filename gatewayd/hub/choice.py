"""Choice of the files of a model: safetensors with their index, or one GGUF model."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gatewayd.hub.errors import NO_CHOICE, UNSERVABLE, HubError
from gatewayd.hub.gguf_models import find_gguf, gguf_models
from gatewayd.hub.reference import HubReference
from gatewayd.hub.repo_files import PICKLES, is_allowed

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"

MOST_INDEX_BYTES: Final = 64 * 1024 * 1024
"""Limit of the index, which is read before the disk space is compared with all sizes."""

_REQUIRED = (CONFIG, TOKENIZER)
_MOST_BESIDE = 500
"""Limit of the files beside weights; models have about ten."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of one model.

    Attributes:
        names: in the order in which they are fetched: weights first, ``config.json`` last, so that
            a folder that has it is complete.
        served: path to serve below the folder: empty for the folder itself, else a GGUF file.
    """

    names: tuple[str, ...]
    served: str = ""

    @property
    def needed(self) -> list[str]:
        """Files without which the model cannot be served."""
        ends = (".safetensors", ".gguf")
        return [name for name in self.names if name.endswith(ends) or name in _REQUIRED]


def choose(
    names: Collection[str], reference: HubReference, read_index: Callable[[], bytes]
) -> ModelFiles:
    """Choose the files of the model that a reference names.

    Safetensors take precedence over GGUF, unless the reference names a GGUF model.

    Args:
        names: of all files of the repository.
        reference: names the model.
        read_index: returns the content of ``INDEX``; called only if that is there.

    Raises:
        HubError: there is no such model, several, or one that cannot be served.
    """
    if not reference.part and any(name in names for name in (INDEX, SINGLE)):
        weights = _shards(names, reference.repo, read_index) if INDEX in names else [SINGLE]
        if missing := [name for name in _REQUIRED if name not in names]:
            raise HubError(
                f"{reference.repo} has no {' and no '.join(missing)}, which a model in safetensors"
                " needs; choose a repository that has them",
                UNSERVABLE,
            )
        return ModelFiles((*weights, *_beside(names)))
    models = gguf_models(names)
    if not models and not reference.part:
        raise _without_weights(names, reference.repo)
    model = find_gguf(models, reference.part, reference.repo)
    return ModelFiles(model.files, served=model.files[0])


def include(names: Collection[str], patterns: Sequence[str], repo: str) -> ModelFiles:
    """Choose the files that match a pattern; with safetensors also those that describe a model.

    Raises:
        HubError: a pattern matches no file that may be fetched.
    """
    allowed = sorted(filter(is_allowed, names))
    chosen: list[str] = []
    for pattern in patterns:
        matched = [name for name in allowed if fnmatchcase(name, pattern)]
        if not matched:
            weights = [name for name in allowed if name.endswith((".safetensors", ".gguf"))]
            raise HubError(
                f"--include {pattern!r} matches no file of {repo} that may be fetched; its weights"
                f" are {_listed(weights)}",
                NO_CHOICE,
            )
        chosen += matched
    # Weights sort after `config.json`, which marks a complete folder.
    first = [name for name in chosen if name.endswith((".safetensors", ".gguf"))]
    beside = _beside(names) if any(name.endswith(".safetensors") for name in first) else ()
    last = (CONFIG,) if CONFIG in {*chosen, *beside} else ()
    middle = [name for name in (*chosen, *beside) if name != CONFIG]
    return ModelFiles(tuple(dict.fromkeys([*first, *middle, *last])))


def _beside(names: Collection[str]) -> tuple[str, ...]:
    """Return the files that describe a model in safetensors; ``config.json`` last.

    Raises:
        HubError: they are too many for one model.
    """
    found = sorted(
        name
        for name in names
        if "/" not in name
        and is_allowed(name)
        and not name.endswith((".safetensors", ".gguf"))
        # Indices of formats that are not fetched.
        and (name == INDEX or not name.endswith(".index.json"))
    )
    if len(found) > _MOST_BESIDE:
        raise HubError(
            f"the repository has {len(found)} files beside its weights, more than the"
            f" {_MOST_BESIDE} that are fetched",
            UNSERVABLE,
        )
    return (*(name for name in found if name != CONFIG), *(n for n in found if n == CONFIG))


def _shards(names: Collection[str], repo: str, read_index: Callable[[], bytes]) -> list[str]:
    try:
        weight_map = json.loads(read_index())["weight_map"]
        shards = sorted({*map(str, weight_map.values())})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError(f"{repo}: {INDEX} has no valid weight_map: {error}", UNSERVABLE) from error
    for shard in shards:
        if shard not in names or "/" in shard or not shard.endswith(".safetensors"):
            raise HubError(
                f"{repo}: {INDEX} names {shard[:200]!a}, which is no safetensors file of the"
                " repository",
                UNSERVABLE,
            )
    return shards


def _without_weights(names: Collection[str], repo: str) -> HubError:
    weights = sorted(name for name in names if name.endswith(".safetensors"))
    pickles = sorted(name for name in names if name.endswith(PICKLES))
    if weights:
        text = f"{repo} has {_listed(weights)}, but no {SINGLE} and no {INDEX}"
    elif pickles:
        text = (
            f"{repo} has weights only in {_listed(pickles)}; such files can run code when they are"
            " read, and are never fetched: choose a repository with safetensors or GGUF"
        )
    else:
        text = f"{repo} has no safetensors and no GGUF files"
    return HubError(text, UNSERVABLE)


def too_large(repo: str) -> HubError:
    """Return the error for an index that exceeds its limit."""
    return HubError(f"{repo}: {INDEX} has more than {MOST_INDEX_BYTES} bytes", UNSERVABLE)


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 10} more" if len(names) > 10 else ""
    shown = [name if name.isprintable() else ascii(name) for name in names[:10]]
    return f"{', '.join(shown) or 'none'}{rest}"
