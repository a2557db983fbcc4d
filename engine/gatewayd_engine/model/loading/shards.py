"""Discovery of a folder's safetensors files. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from gatewayd_engine.model.json_fields import JsonFields, SpecError
from gatewayd_engine.model.loading.safetensors_headers import LoadError, shown

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_LONGEST_NAME = 200
"""Limit of file names: beyond theirs, file systems raise errors of other kinds."""


def weight_files(folder: Path) -> list[Path]:
    """Return the files that contain the weights of a folder, without opening them.

    Raises:
        LoadError: there are none, or a file of the index is missing.
    """
    if not folder.is_dir():
        raise LoadError(f"{folder} is not a folder")
    if (folder / INDEX).exists():
        return [folder / name for name in _shards(folder)]
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    others = sorted(
        path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".pkl")
    )
    if others:
        raise LoadError(
            f"{folder} holds {others[0]} but no safetensors; such files can run code when they are"
            " read, so convert them to safetensors first"
        )
    raise LoadError(f"{folder} holds neither {SINGLE} nor {INDEX}")


def _shards(folder: Path) -> list[str]:
    try:
        weight_map = JsonFields.of_file(folder / INDEX).raw("weight_map")
    except SpecError as error:
        raise LoadError(str(error)) from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(f"{folder / INDEX} lacks weight_map, an object of tensor and file names")
    names = {str(name) for name in weight_map.values()}
    for name in sorted(names):
        # Plain file names only: an index must not reach outside of its folder.
        if (
            Path(name).name != name
            or not name.endswith(".safetensors")
            or not name.isprintable()
            or len(name) > _LONGEST_NAME
        ):
            raise LoadError(
                f"{folder / INDEX} names {shown(name)!r}, which is no safetensors file name"
            )
        if not (folder / name).exists():
            raise LoadError(f"{folder / name} does not exist, but {INDEX} names it")
    return sorted(names)
