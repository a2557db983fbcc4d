"""GGUF models among the files of a repository, by their quantization."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gatewayd.hub.errors import NO_CHOICE, NOT_FOUND, UNSERVABLE, HubError
from gatewayd_engine.model.gguf.files import SHARD

_QUANTIZATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q[0-9]\w*|TQ[0-9]\w*|MXFP[0-9]\w*|NVFP[0-9]\w*|F16|BF16|F32))$",
    re.IGNORECASE | re.ASCII,
)
_NO_MODEL = re.compile(r"(?:mmproj|imatrix)", re.IGNORECASE)
"""Beginnings of files beside a model: vision projectors and importance matrices."""


class GgufModel(NamedTuple):
    """A model in one GGUF file, or in several parts.

    Attributes:
        label: its quantization; its file name where that is not unique or unknown.
        files: names in order; the first has the metadata.
        num_missing: number of parts that are not there.
    """

    label: str
    files: tuple[str, ...]
    num_missing: int = 0


def gguf_models(names: Iterable[str]) -> list[GgufModel]:
    """Return the GGUF models among some files, sorted by label."""
    groups: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for name in sorted(names):
        if name.endswith(".gguf") and not _NO_MODEL.match(name.rpartition("/")[2]):
            part = SHARD.fullmatch(name)
            key = (part["stem"], int(part["count"])) if part else (name.removesuffix(".gguf"), 1)
            groups[key].append(name)
    quantizations = {key: _quantization(key[0]) for key in groups}
    counts = Counter(quantizations.values())
    found = []
    for key, files in groups.items():
        quantization = quantizations[key]
        is_unique = quantization and counts[quantization] == 1
        label = quantization if is_unique else files[0]
        found.append(GgufModel(label, tuple(files), key[1] - len(files)))
    return sorted(found)


def find_gguf(models: Sequence[GgufModel], part: str, name: str) -> GgufModel:
    """Find the model that a reference names.

    Args:
        models: of the repository.
        part: label, file name with or without its ending, or empty if there is only one.
        name: of the repository, for errors.

    Raises:
        HubError: it names none or several, or files of it are missing.
    """
    found = [model for model in models if not part or _is_named(model, part)]
    labels = ", ".join(model.label for model in models)
    if not found:
        raise HubError(f"{name} has no GGUF model {part!r}; it has {labels or 'none'}", NOT_FOUND)
    if len(found) > 1:
        raise HubError(
            f"{name} has several GGUF models: {labels}; choose one, such as"
            f" {name}:{found[0].label}",
            NO_CHOICE,
        )
    if found[0].num_missing:
        raise HubError(
            f"{name}: {found[0].num_missing} parts of {found[0].label} are missing", UNSERVABLE
        )
    return found[0]


def _is_named(model: GgufModel, part: str) -> bool:
    plain = part.removesuffix(".gguf")
    return part.lower() == model.label.lower() or any(
        plain in (file.removesuffix(".gguf"), file.rpartition("/")[2].removesuffix(".gguf"))
        for file in model.files
    )


def _quantization(stem: str) -> str:
    """Return the quantization at the end of a file name, in capitals; empty if there is none."""
    found = _QUANTIZATION.search(stem.rpartition("/")[2])
    return found[1].upper() if found else ""
