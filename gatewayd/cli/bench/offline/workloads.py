"""Offline workloads: token ids and output lengths fixed by seed, the same for every engine.

They must not change, because the figures in ``h200.toml`` were measured with these ids.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_FIRST, _END = 10, 128_000  # ids in every vocabulary of Llama 3's size, without special tokens
_BATCHES = (1, 8, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are submitted at once.

    Attributes:
        name: as in the stored figures.
        shared: token ids of the prefix that all prompts share.
        own: token ids of each request after the shared prefix.
        output_lens: tokens to generate for each request.
    """

    name: str
    shared: list[int]
    own: list[list[int]]
    output_lens: list[int]

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids of every request."""
        return [self.shared + own for own in self.own]

    def scaled(self, fraction: float) -> Workload:
        """Scale the number of requests and all lengths by a fraction, each to at least 1."""
        count = _part(len(self.own), fraction)
        return Workload(
            self.name,
            self.shared[: _part(len(self.shared), fraction)],
            [own[: _part(len(own), fraction)] for own in self.own[:count]],
            [_part(length, fraction) for length in self.output_lens[:count]],
        )

    def fitted(self, vocab_size: int, max_model_len: int) -> Workload:
        """Fit the workload to a smaller model: ids modulo vocabulary, lengths within context."""
        outputs = [min(length, max_model_len // 2) for length in self.output_lens]
        room = max_model_len - max(outputs)
        # Half of the context remains for the requests' own tokens.
        shared = self.shared[: room // 2] if len(self.shared) >= room else self.shared
        return Workload(
            self.name,
            [token % vocab_size for token in shared],
            [[token % vocab_size for token in own[: room - len(shared)]] for own in self.own],
            outputs,
        )


def _part(whole: int, fraction: float) -> int:
    return min(whole, max(1, round(whole * fraction)))


def _ids(chance: random.Random, length: int) -> list[int]:
    return [chance.randrange(_FIRST, _END) for _ in range(length)]


def _plain(name: str, seed: int, requests: int, input_len: int, output_len: int) -> Workload:
    chance = random.Random(seed)
    return Workload(
        name, [], [_ids(chance, input_len) for _ in range(requests)], [output_len] * requests
    )


def _chat(seed: int) -> Workload:
    chance = random.Random(seed)

    def length(mean: float, sigma: float, most: int) -> int:
        # Shifted by sigma squared / 2, so that ``mean`` is the mean and not the median.
        drawn = int(chance.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))
        return max(4, min(most, drawn))

    # The lengths of all requests are drawn before any id.
    lens = [(length(230, 1.0, 2048), length(200, 0.9, 1024)) for _ in range(1000)]
    return Workload(
        "chatlike_1000", [], [_ids(chance, n) for n, _ in lens], [output for _, output in lens]
    )


def _shared(seed: int) -> Workload:
    chance = random.Random(seed)
    shared = _ids(chance, 1000)
    own = [_ids(chance, 50) for _ in range(1000)]
    return Workload("sharedprefix_1000x(1000+50)_out32", shared, own, [32] * 1000)


def _decode(batch: int) -> Callable[[int], Workload]:
    name = f"decode_bs{batch}_in128_out256"
    return lambda offset: _plain(name, 100 + batch + offset, batch, 128, 256)


WORKLOADS: Mapping[str, Callable[[int], Workload]] = MappingProxyType(
    {f"decode-{batch}": _decode(batch) for batch in _BATCHES}
    | {
        "prefill": lambda offset: _plain("prefill_64x4096_out1", 7 + offset, 64, 4096, 1),
        "chat": lambda offset: _chat(8 + offset),
        "shared": lambda offset: _shared(9 + offset),
        "long": lambda offset: _plain("long_16x16384_out128", 10 + offset, 16, 16_384, 128),
        "even": lambda offset: _plain("even_512x1000_out1000", 11 + offset, 512, 1000, 1000),
    }
)
"""Workload factories by command line name; the argument is added to the seed, 0 by default."""
ON_REQUEST = frozenset({"even"})
"""Workloads run only if named, because their goals are for 8-bit weights and KV caches."""

KEYS: Mapping[str, str] = MappingProxyType(
    {f"decode_bs{batch}_in128_out256": f"decode-{batch}" for batch in _BATCHES}
    | {
        "prefill_64x4096_out1": "prefill",
        "chatlike_1000": "chat",
        "sharedprefix_1000x(1000+50)_out32": "shared",
        "long_16x16384_out128": "long",
        "even_512x1000_out1000": "even",
    }
)
"""Command line names, by the names in stored figures."""
