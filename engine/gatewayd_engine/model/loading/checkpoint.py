"""Checkpoint access: tensors are read only after all headers were checked against config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from gatewayd_engine.model.config.text_part import text_tensor
from gatewayd_engine.model.gguf.files import has_gguf
from gatewayd_engine.model.gguf.source import GgufSource
from gatewayd_engine.model.loading.kv_scales import KvScales, scale_names, used_scales
from gatewayd_engine.model.loading.layout import Shapes, layout, matrices
from gatewayd_engine.model.loading.safetensors_headers import LoadError, shown
from gatewayd_engine.model.loading.stacked_experts import split_experts
from gatewayd_engine.model.loading.tensor_sources import SafetensorsSource, TensorSource
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import validated
from gatewayd_hooks.quantization import Announcement, Matrix, Scheme, Stored, Weight

MOST_NAMED = 5
FLOATS = ("F32", "BF16", "F16", "F64")
_MOST_NUMBERS, _DEEPEST = 12, 3
_BIAS = "bias"
_LEGACY_FILES = ("quantize_config.json", "quant_config.json")
"""Where AutoGPTQ and AutoAWQ described the quantization before config.json had a field for it."""
_Forms = Mapping[str, tuple[Stored, ...]]


class Checkpoint:
    """A model's checkpoint, in which every tensor is known to exist in a readable form.

    Attributes:
        folder: folder of the checkpoint.
        spec: read from its config.json.
        shapes: names and shapes of the model's tensors, whatever form they are stored in.
    """

    def __init__(
        self, folder: Path, spec: ModelSpec, scheme: Scheme | None, source: TensorSource
    ) -> None:
        """Check all headers; see ``open`` for the arguments.

        Raises:
            LoadError: the tensors do not match the spec; the message lists all problems.
        """
        self.folder = folder
        self.spec = spec
        self._scheme = scheme
        self._source = source
        self.shapes: Shapes = layout(spec, _Present(source.stored))
        self._matrices = matrices(self.shapes)
        # Filled by ``_check``, with the matrices that the scheme stores in a form of its own.
        self._packed: dict[str, Matrix] = {}
        self._check()

    @classmethod
    def open(cls, folder: Path, spec: ModelSpec, scheme: Scheme | None = None) -> Checkpoint:
        """Open the checkpoint of a folder and check its headers.

        Args:
            folder: contains ``model.safetensors``, or shards and their index, or GGUF files.
            spec: of the same folder.
            scheme: storage format of quantized matrices; None if they are not quantized.

        Raises:
            LoadError: a file is missing or broken, or its tensors do not match the spec.
        """
        if spec.quantization is not None and scheme is None:
            raise LoadError(
                f"{spec.quantization.where}: the weights are quantized; only float32, bfloat16 and"
                " float16 weights can be read here"
            )
        if has_gguf(folder):
            return cls(folder, spec, scheme, GgufSource(folder, spec))
        source = SafetensorsSource(folder, text_tensor if spec.is_text_part else str)
        return cls(folder, spec, scheme, split_experts(source, spec))

    @property
    def files(self) -> list[str]:
        """Names of the files that contain its tensors, sorted; other files are not read."""
        return sorted({self._source.where(name) for name in self._source.stored})

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor that is stored unquantized."""
        return self._source.read(name)

    def matrix(self, name: str) -> Weight:
        """Read a matrix, possibly quantized, by its name without ``.weight``.

        Raises:
            LoadError: it cannot be read, or its values are invalid.
        """
        matrix = self._packed.get(name)
        if matrix is None or self._scheme is None:
            return self._source.read(f"{name}.weight")

        # The tensor that was read last: errors of a scheme name its file.
        last = name

        def read_tensor(suffix: str) -> torch.Tensor:
            nonlocal last
            full = f"{name}.{suffix}"
            if full not in self._source.stored:
                # The contract of ``take``: schemes notice by it that an optional tensor is absent.
                raise KeyError(suffix)
            last = full
            return self._source.read(full)

        try:
            self._refuse_lost_bias(name)
            return validated(matrix, self._scheme.weight(matrix, read_tensor))
        # A LoadError is a ValueError, and names its file already.
        except LoadError:
            raise
        except ValueError as error:
            file = self._source.where(last) if last != name else self.folder.name
            raise LoadError(f"{file}: {name}: {error}") from error

    def kv_scales(self, *, is_plain: bool) -> dict[int, KvScales]:
        """Read the KV cache scales by layer; empty unless the KV cache is plain e4m3.

        Raises:
            LoadError: a scale is invalid.
        """
        return used_scales(self.spec, self._source, is_plain=is_plain)

    @property
    def scale_names(self) -> list[str]:
        """Names of stored KV cache scales and similar tensors, which are not in ``shapes``."""
        return [name for name in scale_names(self.spec) if name in self._source.stored]

    def close(self) -> None:
        """Close the files."""
        self._source.close()

    def _check(self) -> None:
        """Compare all tensor names and forms with the spec.

        Raises:
            LoadError: some differ; the message lists them.
        """
        stored, spec = self._source.stored, self.spec
        drafts = range(spec.num_layers, spec.num_layers + spec.draft_layers)
        # Layers that would predict further tokens.
        unread = tuple(f"model.layers.{index}." for index in drafts)
        # All problems are collected, as one cause often changes many tensors.
        missing, wrong, known = [], [], {*scale_names(self.spec)}
        for name, shape in self.shapes.items():
            for full, forms, is_needed in self._forms(name, shape):
                known.add(full)
                if full not in stored:
                    missing += [full] if is_needed else []
                elif stored[full] not in forms:
                    wrong.append(self._difference(full, forms))
        unexpected = [
            name
            for name in sorted(stored.keys() - known)
            # Some old releases store RoPE frequencies, or a copy of a tied embedding as the head.
            if not name.endswith("rotary_emb.inv_freq")
            and not (name.startswith("lm_head.") and spec.tie_word_embeddings)
            and not name.startswith(unread)
        ]
        if self._scheme is None:
            self._refuse_unannounced(unexpected)
        kinds = {"missing": missing, "wrong": wrong, "unexpected": unexpected}
        problems = [f"{kind} tensors: {_some(names)}" for kind, names in kinds.items() if names]
        if problems:
            announced = self.spec.quantization
            said = "" if announced is None else f" ({_describe(announced)})"
            raise LoadError(
                f"the weights in {self.folder} are not those of its config.json,"
                f" {self.spec.architecture}{said}; " + "; ".join(problems)
            )

    def _forms(
        self, name: str, shape: tuple[int, ...]
    ) -> list[tuple[str, tuple[Stored, ...], bool]]:
        """Return how a tensor of the model is stored.

        Returns:
            Names of the stored tensors, their allowed forms, and whether each is required.
        """
        matrix = self._matrices.get(name)
        needed: _Forms | None = None
        if matrix is not None and self._scheme is not None:
            try:
                needed = self._scheme.stored(matrix)
            except ValueError as error:
                where = (
                    "" if self.spec.quantization is None else f"{self.spec.quantization.where}: "
                )
                raise LoadError(f"{where}{error}") from error
        if matrix is None or needed is None or self._scheme is None:
            return [(name, tuple(Stored(dtype, shape) for dtype in FLOATS), True)]
        self._packed[matrix.name] = matrix
        rest = self._scheme.optional(matrix)
        return [(f"{matrix.name}.{suffix}", forms, True) for suffix, forms in needed.items()] + [
            (f"{matrix.name}.{suffix}", forms, False) for suffix, forms in rest.items()
        ]

    def _difference(self, name: str, forms: tuple[Stored, ...]) -> str:
        found, file = self._source.stored[name], self._source.where(name)
        if found.dtype not in {form.dtype for form in forms}:
            allowed = ", ".join(dict.fromkeys(form.dtype for form in forms))
            # Integers where floats are expected suggest that an announcement is missing.
            if f"{name.removesuffix('.weight')}.weight" in self._matrices and self._scheme is None:
                return f"{file}: {name} holds {found.dtype}, {self._unannounced()}"
            return f"{file}: {name} holds {found.dtype}; supported are {allowed}"
        expected = next(form for form in forms if form.dtype == found.dtype)
        if self._scheme is None:
            return f"{file}: {name} is {list(found.shape)}, not {list(expected.shape)}"
        return (
            f"{file}: {name} is {found.dtype} {list(found.shape)}, not {expected.dtype}"
            f" {list(expected.shape)}"
        )

    def _refuse_unannounced(self, unexpected: list[str]) -> None:
        """Refuse integer tensors next to a matrix: a quantization without quantization_config.

        Raises:
            LoadError: there is one.
        """
        for name in unexpected:
            stored = self._source.stored[name]
            is_beside = f"{name.rpartition('.')[0]}.weight" in self._matrices
            if is_beside and stored.dtype not in FLOATS:
                raise LoadError(
                    f"{self._source.where(name)}: {name} holds {stored.dtype},"
                    f" {self._unannounced()}"
                )

    def _unannounced(self) -> str:
        problem = "so it looks quantized, but config.json has no quantization_config"
        old = next((name for name in _LEGACY_FILES if (self.folder / name).is_file()), None)
        if old is None:
            return problem
        return (
            f"{problem}; put the contents of {old} there, with quant_method and, for awq, bits and"
            " group_size"
        )

    def _refuse_lost_bias(self, name: str) -> None:
        """Refuse a stored bias that the model has not, unless it is all zeros.

        Some quantization tools add biases of zeros, which can be ignored.

        Raises:
            LoadError: the bias is not zero.
        """
        bias = f"{name}.{_BIAS}"
        if bias in self.shapes or bias not in self._source.stored:
            return
        # Made when the matrix is read, not at ``open``, as it needs the numbers of the bias.
        if self._source.read(bias).any():
            raise LoadError(
                f"{self._source.where(bias)}: {bias} is not all zeros, but the model of"
                f" config.json, {self.spec.architecture}, has no such bias"
            )


class _Present:
    """Names of stored tensors, plus ``x.weight`` for every ``x.qweight`` and similar."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._names = {*stored, *(f"{name.rpartition('.')[0]}.weight" for name in stored)}

    def __contains__(self, name: object) -> bool:
        return name in self._names


def _describe(announced: Announcement) -> str:
    """Describe a quantization for an error message: its location and its numeric settings."""
    # Only the first ones: an announcement may have hundreds of numbers.
    some = islice(_numbers(announced.values), _MOST_NUMBERS)
    numbers = ", ".join(f"{shown(name)} {shown(str(value))}" for name, value in some)
    return f"{announced.where}: {numbers}" if numbers else announced.where


def _numbers(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """Yield the integers of an object and of nested ones, to the depth that formats use."""
    for name, value in values.items():
        if isinstance(value, Mapping) and len(path) < _DEEPEST:
            yield from _numbers(value, (*path, name))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield ".".join((*path, name)), value


def _some(names: list[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
