"""Weights from safetensors files, or from a random generator.

Headers are checked first, all of them, so that a wrong checkpoint fails in a moment and names
what is wrong. Only safetensors is read: the other formats can run code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from gatewayd_engine.model.assembly import assemble
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.fields import Fields, SpecError
from gatewayd_engine.model.spec import ModelSpec

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MOST_NAMED = 5
FLOATS = ("F32", "BF16", "F16", "F64")


class LoadError(ValueError):
    """The weights cannot be loaded; the message names the file or the tensor."""


def load(
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: str,
    progress: Callable[[float], None],
) -> Decoder:
    """Load a checkpoint.

    Args:
        folder: holds ``model.safetensors``, or shards and their index.
        spec: of the same folder.
        dtype: of the decoder, whatever the files hold.
        device: where the weights go.
        progress: told the fraction read so far, at last 1.0.

    Raises:
        LoadError: a file is missing or corrupt, or its tensors are not the spec's.
    """
    with Files(folder) as files:
        check = _Headers(files.shapes)
        assemble(spec, check)
        check.finish(folder, spec)
        decoder = assemble(spec, _Reader(files, dtype, device, progress))
    progress(1.0)
    return decoder


def dummy(spec: ModelSpec, dtype: torch.dtype, device: str, seed: int) -> Decoder:
    """A decoder of random weights, the same for the same seed and device."""
    return assemble(spec, _Random(dtype, device, seed))


class _Slice(Protocol):
    def get_dtype(self) -> str: ...

    def get_shape(self) -> list[int]: ...


class _File(Protocol):
    """What safetensors' own untyped class offers."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Slice: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


class Files:
    """The open safetensors files of a folder and where each tensor lies."""

    def __init__(self, folder: Path) -> None:
        self._paths = _paths(folder)
        self._open: list[_File] = []
        self._home: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for number, path in enumerate(self._paths):
            try:
                file: _File = safe_open(path, framework="pt")
                self._open.append(file)
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    self._add(number, name, file)
            except (OSError, SafetensorError) as error:
                raise LoadError(f"{path} is not a whole safetensors file: {error}") from error

    def _add(self, number: int, name: str, file: _File) -> None:
        if name in self._home:
            raise LoadError(
                f"tensor {name} is in {self._paths[self._home[name]].name} and again in"
                f" {self._paths[number].name}"
            )
        part = file.get_slice(name)
        if part.get_dtype() not in FLOATS:
            raise LoadError(
                f"{self._paths[number]}: tensor {name} holds {part.get_dtype()}; supported are"
                f" {', '.join(FLOATS)}"
            )
        self._home[name] = number
        self.shapes[name] = tuple(part.get_shape())

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored."""
        number = self._home[name]
        try:
            return self._open[number].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise LoadError(f"{self._paths[number]}: {name} cannot be read: {error}") from error

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Mapped files close when the last reference goes.
        self._open.clear()


def _paths(folder: Path) -> list[Path]:
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
        weight_map = Fields.of_file(folder / INDEX).raw("weight_map")
    except SpecError as error:
        raise LoadError(str(error)) from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(f"{folder / INDEX} lacks weight_map, an object of tensor and file names")
    names = {str(name) for name in weight_map.values()}
    for name in sorted(names):
        # A plain name: an index must not reach outside of its folder.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise LoadError(f"{folder / INDEX} names {name!r}, which is no safetensors file name")
        if not (folder / name).exists():
            raise LoadError(f"{folder / name} does not exist, but {INDEX} names it")
    return sorted(names)


class _Headers:
    """Tensors without data: collects what is missing or of the wrong shape."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.num_parameters = 0
        self._shapes = shapes
        self._taken: set[str] = set()
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def take(self, name: str, *shape: int) -> torch.Tensor:
        found = self._shapes.get(name)
        self._taken.add(name)
        if found is None:
            self._missing.append(name)
        elif found != shape:
            self._wrong.append(f"{name} is {list(found)}, not {list(shape)}")
        return torch.empty(shape, device="meta")

    def finish(self, folder: Path, spec: ModelSpec) -> None:
        """Raise if anything did not fit."""
        unexpected = [
            name
            for name in sorted(self._shapes.keys() - self._taken)
            # Old releases carry the frequencies, and tied ones a second copy of the embedding.
            if not name.endswith("rotary_emb.inv_freq")
            and not (name == "lm_head.weight" and spec.tie_word_embeddings)
        ]
        problems = [
            f"{kind} {_some(names)}"
            for kind, names in (
                ("missing tensors:", self._missing),
                ("wrong shapes:", self._wrong),
                ("unexpected tensors:", unexpected),
            )
            if names
        ]
        if problems:
            raise LoadError(
                f"the weights in {folder} are not those of its config.json, {spec.architecture}; "
                + "; ".join(problems)
            )


def _some(names: list[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


class _Reader:
    """Tensors from the files."""

    def __init__(
        self, files: Files, dtype: torch.dtype, device: str, progress: Callable[[float], None]
    ) -> None:
        self.num_parameters = 0
        self._files = files
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._total = sum(torch.Size(shape).numel() for shape in files.shapes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._files.shapes

    def take(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._files.read(name).to(self._device, self._dtype)
        self.num_parameters += tensor.numel()
        self._progress(min(self.num_parameters / max(self._total, 1), 0.999))
        return tensor


class _Random:
    """Random tensors: norms near one, matrices that keep the size of what they map."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int) -> None:
        self.num_parameters = 0
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return False

    def take(self, name: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        self.num_parameters += tensor.numel()
        if name.endswith("norm.weight"):
            return tensor.fill_(1.0)
        return tensor.normal_(0.0, shape[-1] ** -0.5, generator=self._generator)
