"""Conformance tests of model backends, for any library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_hooks.model_backends import (
    LoadedModel,
    ModelBackendResources,
    ModelBackendStrategy,
    ModelFacts,
)
from gatewayd_hooks.quantization import Stored

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_CLOSE = 1e-4


class ModelBackendConformance:
    """Subclass it, build your backend in ``make``, and write a checkpoint in ``write``."""

    def make(self) -> ModelBackendStrategy:
        """Build the backend; the tests open and close it."""
        raise NotImplementedError("return your backend, built and not opened")

    def write(self, folder: Path) -> None:
        """Write a small random checkpoint that it serves: config.json, model.safetensors."""
        raise NotImplementedError("write a checkpoint of a few thousand weights to the folder")

    @contextmanager
    def opened(self, folder: Path, max_model_len: int | None = None) -> Iterator[_Opened]:
        """Yield the backend, opened on a checkpoint that has just been written."""
        if not (folder / "config.json").exists():
            self.write(folder)
        backend = self.make()
        try:
            backend.open(ModelBackendResources(str(folder), "cpu", max_model_len))
            yield _Opened(backend, folder)
        finally:
            backend.close()

    def test_its_facts_are_sizes(self, tmp_path: Path) -> None:
        with self.opened(tmp_path) as opened:
            facts, shape = opened.facts, opened.facts.attention
        sizes = (facts.num_parameters, facts.vocab_size, facts.hidden_size, facts.max_model_len)
        assert min(*sizes, shape.num_layers, shape.head_dim, shape.num_kv_heads) > 0
        assert shape.num_heads % shape.num_kv_heads == 0
        assert len(shape.windows) == shape.num_layers
        assert list(facts.eos_token_ids) == sorted(set(facts.eos_token_ids))

    def test_a_context_length_is_kept_or_refused(self, tmp_path: Path) -> None:
        with self.opened(tmp_path, 8) as opened:
            assert opened.facts.max_model_len == 8
        with self.opened(tmp_path, 0) as opened, pytest.raises(ValueError, match="0"):
            opened.backend.facts()

    def test_a_step_calls_attention_once_for_each_layer(self, tmp_path: Path) -> None:
        with self.opened(tmp_path) as opened:
            model, shape = opened.load(), opened.facts.attention
            attend = DenseAttend(opened.facts, model)
            opened.hidden(model, [3, 4, 5], [0, 1, 2], attend)
        parts = 1 if shape.values_are_keys else 2
        heads = [(3, n, shape.head_dim) for n in (shape.num_heads, parts * shape.num_kv_heads)]
        assert attend.calls == [(layer, *heads) for layer in range(shape.num_layers)]

    def test_hidden_states_and_logits_have_the_sizes_of_its_facts(self, tmp_path: Path) -> None:
        with self.opened(tmp_path) as opened:
            model, facts = opened.load(), opened.facts
            hidden = opened.hidden(model, [3, 4, 5], [0, 1, 2], DenseAttend(facts, model))
            with torch.inference_mode():
                logits, rows = model.logits(hidden[1:]), model.embed(torch.tensor([3, 4]))
        assert hidden.shape == (3, facts.hidden_size)
        assert logits.shape == (2, facts.vocab_size)
        assert rows.shape == (2, facts.hidden_size)
        assert logits.isfinite().all()

    def test_a_chunked_sequence_has_the_hidden_states_of_a_whole_one(self, tmp_path: Path) -> None:
        ids = [3, 7, 5, 9, 4, 8, 6, 3]
        with self.opened(tmp_path) as opened:
            model = opened.load()
            attend = DenseAttend(opened.facts, model)
            whole = opened.hidden(model, ids, range(8), attend)
            attend = DenseAttend(opened.facts, model)
            chunks = [
                opened.hidden(model, ids[a:b], range(a, b), attend)
                for a, b in ((0, 3), (3, 4), (4, 8))
            ]
        assert torch.allclose(torch.cat(chunks), whole, atol=_CLOSE, rtol=_CLOSE)

    def test_sequences_of_a_step_do_not_see_each_other(self, tmp_path: Path) -> None:
        one, other = [3, 7, 5, 9], [6, 4, 8]
        with self.opened(tmp_path) as opened:
            model = opened.load()
            alone = [
                opened.hidden(model, ids, range(len(ids)), DenseAttend(opened.facts, model))
                for ids in (one, other)
            ]
            both = opened.hidden(
                *(model, [*other, *one], [0, 1, 2, 0, 1, 2, 3]),
                DenseAttend(opened.facts, model, lengths=(3, 4)),
            )
        assert torch.allclose(both, torch.cat(alone[::-1]), atol=_CLOSE, rtol=_CLOSE)

    def test_matrices_are_packed_by_the_engine(self, tmp_path: Path) -> None:
        with self.opened(tmp_path) as opened:
            model = opened.load()
            attend = DenseAttend(opened.facts, model)
            opened.hidden(model, [3, 4], [0, 1], attend)
        packed = opened.weights.packed
        assert len(packed) >= opened.facts.attention.num_layers
        assert opened.weights.products > 0
        assert model.nbytes + 4 * sum(packed.values()) >= 4 * opened.facts.num_parameters // 2
        assert opened.weights.fractions[-1] == pytest.approx(1.0)

    def test_a_missing_tensor_is_named(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        name = max(tensors, key=lambda each: tensors[each].dim())
        del tensors[name]
        save_file(tensors, tmp_path / "model.safetensors")
        with self.opened(tmp_path) as opened, pytest.raises(ValueError, match=name.split(".")[-1]):
            opened.load()

    def test_a_folder_without_a_model_is_refused_by_name(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "not_a_model"}')
        with self.opened(tmp_path) as opened, pytest.raises(ValueError, match="not_a_model"):
            opened.backend.facts()


class _Weights:
    """Tensors of one file; matrices are multiplied as they are."""

    def __init__(self, folder: Path) -> None:
        self._tensors = load_file(folder / "model.safetensors")
        self.folder = str(folder)
        self.stored: Mapping[str, Stored] = {
            name: Stored(_NAMES[each.dtype], tuple(each.shape))
            for name, each in self._tensors.items()
        }
        self.dtype, self.device = torch.float32, "cpu"
        self.packed: dict[str, int] = {}
        self.products = 0
        self.fractions: list[float] = []

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def pack(self, name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> _Packed:
        assert name not in self.packed
        assert weight.dim() == 2
        self.packed[name] = weight.numel()
        return _Packed(self, weight.clone(), None if bias is None else bias.clone())

    def report(self, fraction: float) -> None:
        self.fractions.append(fraction)


class _Packed:
    """Matrix and bias."""

    def __init__(self, owner: _Weights, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._owner, self._weight, self._bias = owner, weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dim() == 2
        self._owner.products += 1
        return torch.nn.functional.linear(x, self._weight, self._bias)


class _Opened:
    """An opened backend and its checkpoint."""

    def __init__(self, backend: ModelBackendStrategy, folder: Path) -> None:
        self.backend = backend
        self._folder = folder

    @property
    def facts(self) -> ModelFacts:
        return self.backend.facts()

    def load(self) -> LoadedModel:
        self.backend.facts()
        self.weights = _Weights(self._folder)
        return self.backend.load(self.weights)

    def hidden(
        self, model: LoadedModel, ids: list[int], positions: object, attend: DenseAttend
    ) -> torch.Tensor:
        at = torch.tensor(list(positions))  # type: ignore[call-overload]
        attend.start(at)
        with torch.inference_mode():
            return model.hidden(torch.tensor(ids), at, attend)


class DenseAttend:
    """Attention in plain torch that remembers keys and values; implements ``Attends``.

    Args:
        facts: of the model.
        model: whose attention sinks are used.
        lengths: tokens of each sequence of its one step; None for one sequence in several steps.
    """

    def __init__(
        self, facts: ModelFacts, model: LoadedModel, lengths: tuple[int, ...] | None = None
    ) -> None:
        self._shape, self._sinks, self._lengths = facts.attention, model.sinks, lengths
        self._seen: dict[int, list[torch.Tensor]] = {}
        self.calls: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []

    def start(self, positions: torch.Tensor) -> None:
        """Start a step of tokens at these positions."""
        self._positions = positions

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attends``."""
        self.calls.append((layer, tuple(query.shape), tuple(key_value.shape)))
        shape = self._shape
        self._seen.setdefault(layer, []).append(key_value)
        both = torch.cat(self._seen[layer])
        group = shape.num_heads // shape.num_kv_heads
        keys = both[:, : shape.num_kv_heads].repeat_interleave(group, 1)
        # The last heads are the values, also where they are the keys.
        values = both[:, -shape.num_kv_heads :].repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * shape.scale
        if shape.softcap is not None:
            scores = (scores / shape.softcap).tanh() * shape.softcap
        now, at, is_other = self._positions[:, None], torch.arange(len(both))[None], None
        if self._lengths is not None:
            at = self._positions[None]
            owner = torch.repeat_interleave(torch.tensor(self._lengths))
            is_other = owner[:, None] != owner[None]
        hidden = at > now
        window = shape.windows[layer]
        if window:
            first = now // window * window if shape.chunked else now - window + 1
            hidden = hidden | (at < first)
        if is_other is not None:
            hidden = hidden | is_other
        scores = scores.masked_fill(hidden, -torch.inf)
        if self._sinks is not None:
            sink = self._sinks[layer].view(-1, 1, 1).expand(-1, len(query), 1)
            scores = torch.cat((scores, sink), -1)
        weights = torch.softmax(scores, -1)[..., : len(both)]
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
