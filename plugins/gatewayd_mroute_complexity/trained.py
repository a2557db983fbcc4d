"""Probability that a small model's answer does not do, by logistic regression on the text's bytes.

No tokenizer and no model run: the text's byte n-grams are hashed into a table of weights that were
fitted to the answers of the embedded models (``tests/bench/complexity_training.py``). A plugin
cannot import the engine's tokenizer, and byte n-grams are computed by a few vectorized operations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewayd_hooks.targets.model_routing import RoutedRequest

WEIGHTS = Path(__file__).with_name("weights.json")
ORDERS = (3, 4, 5)
"""Lengths of the n-grams, in bytes."""
TABLE_BITS = 13
TABLE_SIZE = 1 << TABLE_BITS
SHAPE = ("characters", "messages", "tools", "output format")
SCALE = 128
"""Stored weights are integers, in units of 1 / ``SCALE``."""
_BASE, _MIX = 0x01000193, 0x9E3779B1
# The values that training has seen: larger ones count as these, as nothing is known about them.
_MOST_CHARS, _MOST_MESSAGES, _MOST_TOOLS = 1000, 6, 1


class ScorerWeights(NamedTuple):
    """Parameters of the regression.

    Attributes:
        bias: log-odds without any feature.
        shape: of the features in ``SHAPE``, float64 ``[4]``.
        table: of hashed n-grams, float64 ``[TABLE_SIZE]``.
    """

    bias: float
    shape: NDArray[np.float64]
    table: NDArray[np.float64]


def ngrams(text: str) -> NDArray[np.bool_]:
    """Return which entries of the table the text's n-grams hash to, shape ``[TABLE_SIZE]``."""
    # A lone surrogate is no reason to fail.
    encoded = f" {text} ".encode("utf-8", "replace")
    present = np.zeros(TABLE_SIZE, np.bool_)
    codes = np.frombuffer(encoded, np.uint8).astype(np.uint32)
    hashes = codes.copy()
    for order in range(2, max(ORDERS) + 1):
        if len(codes) < order:
            break
        # Wraps modulo 2**32, as is intended.
        hashes = hashes[:-1] * np.uint32(_BASE) + codes[order - 1 :]
        if order in ORDERS:
            present[(hashes * np.uint32(_MIX)) >> np.uint32(32 - TABLE_BITS)] = True
    return present


def shape_of(request: RoutedRequest) -> Sequence[float]:
    """Return the features in ``SHAPE``, each 0 to 1."""
    return (
        math.log1p(min(request.num_chars, _MOST_CHARS)) / math.log1p(_MOST_CHARS),
        min(max(request.num_messages - 1, 0), _MOST_MESSAGES) / _MOST_MESSAGES,
        min(request.num_tools, _MOST_TOOLS) / _MOST_TOOLS,
        float(request.needs_json),
    )


@cache
def load() -> ScorerWeights:
    """Read the weights that the plugin is distributed with."""
    stored = json.loads(WEIGHTS.read_text("utf-8"))
    table = np.array(stored["table"], np.float64) / SCALE
    if table.shape != (TABLE_SIZE,) or list(stored["shape"]) != list(SHAPE):
        raise ValueError(f"{WEIGHTS} was written for other features; reinstall gatewayd")
    shape = np.array(list(stored["shape"].values()), np.float64) / SCALE
    return ScorerWeights(stored["bias"] / SCALE, shape, table)


def probability(request: RoutedRequest, weights: ScorerWeights) -> tuple[float, str]:
    """Return the probability, and whether text or shape has the larger part in it."""
    present = ngrams(request.text)
    count = int(np.count_nonzero(present))
    # Divided by the root of their number, so that long texts do not saturate.
    text = float(weights.table @ present) / math.sqrt(count or 1)
    parts = weights.shape * shape_of(request)
    odds = min(30.0, max(-30.0, weights.bias + text + float(parts.sum())))
    largest = int(np.argmax(np.abs(parts)))
    name = "text" if abs(text) >= abs(parts[largest]) else SHAPE[largest]
    return 1 / (1 + math.exp(-odds)), name
