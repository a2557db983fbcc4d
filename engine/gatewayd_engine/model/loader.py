"""Weights from safetensors files, or from a random generator.

Headers are checked first, all of them, so that a wrong checkpoint fails in a moment and names
what is wrong. Only safetensors is read: the other formats can run code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from gatewayd_engine.model.assembly import assemble
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.fields import Fields, SpecError
from gatewayd_engine.model.layout import Shapes, layout
from gatewayd_engine.model.parts import Parts, PlainParts
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
    parts: Parts | None = None,
) -> Decoder:
    """Load a checkpoint.

    Args:
        folder: holds ``model.safetensors``, or shards and their index.
        spec: of the same folder.
        dtype: of the decoder, whatever the files hold.
        device: where the weights go.
        progress: told the fraction read so far, at last 1.0.
        parts: of the decoder; None for plain ones.

    Raises:
        LoadError: a file is missing or corrupt, or its tensors are not the spec's.
    """
    with Files(folder) as files:
        expected = layout(spec, files.shapes)
        _check(folder, spec, expected, files.shapes)
        return assemble(
            spec, _Reader(files, expected, dtype, device, progress), parts or PlainParts()
        )


def dummy(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: str,
    seed: int,
    progress: Callable[[float], None] = lambda part: None,
    parts: Parts | None = None,
) -> Decoder:
    """A decoder of random weights, the same for the same seed and device."""
    weights = _Random(layout(spec), dtype, device, seed, progress)
    return assemble(spec, weights, parts or PlainParts())


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
        self.shapes: Shapes = {}
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


def _check(folder: Path, spec: ModelSpec, expected: Shapes, found: Shapes) -> None:
    """Compare all names and shapes, and raise with all that differ."""
    missing = [name for name in expected if name not in found]
    wrong = [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    unexpected = [
        name
        for name in sorted(found.keys() - expected.keys())
        # Old releases carry the frequencies, and tied ones a second copy of the embedding.
        if not name.endswith("rotary_emb.inv_freq")
        and not (name == "lm_head.weight" and spec.tie_word_embeddings)
    ]
    problems = [
        f"{kind} {_some(names)}"
        for kind, names in (
            ("missing tensors:", missing),
            ("wrong shapes:", wrong),
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


def _num_elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


class _Reader:
    """Tensors from the files."""

    def __init__(
        self,
        files: Files,
        expected: Shapes,
        dtype: torch.dtype,
        device: str,
        progress: Callable[[float], None],
    ) -> None:
        self.num_parameters = _num_elements(expected)
        self._files = files
        self._expected = expected
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._read = 0

    def __contains__(self, name: object) -> bool:
        return name in self._expected

    def take(self, name: str) -> torch.Tensor:
        tensor = self._files.read(name).to(self._device, self._dtype)
        self._read += tensor.numel()
        self._progress(self._read / self.num_parameters)
        return tensor


class _Random:
    """Random tensors: norms of one, matrices that keep the size of what they map."""

    def __init__(
        self,
        expected: Shapes,
        dtype: torch.dtype,
        device: str,
        seed: int,
        progress: Callable[[float], None],
    ) -> None:
        self.num_parameters = _num_elements(expected)
        self._expected = expected
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._made = 0
        self._generator = torch.Generator(device).manual_seed(seed)

    def __contains__(self, name: object) -> bool:
        return name in self._expected

    def take(self, name: str) -> torch.Tensor:
        shape = self._expected[name]
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        self._made += tensor.numel()
        self._progress(self._made / self.num_parameters)
        if name.endswith("norm.weight"):
            return tensor.fill_(1.0)
        return tensor.normal_(0.0, shape[-1] ** -0.5, generator=self._generator)
