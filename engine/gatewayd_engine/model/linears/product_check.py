"""Check of integer products on this processor, once for each format, before they are served.

Instructions of processors that the project has not been run on would otherwise give wrong answers
that look like right ones.
"""

from __future__ import annotations

import logging

import torch

from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.weights import dense, select_rows
from gatewayd_hooks.quantization import GroupedWeight

_log = logging.getLogger(__name__)
_OUTPUTS = 40
"""Outputs that are compared: those of several panels."""
_ROWS = 3
_MOST_ERROR = 0.05
"""Of the norm of the outputs: rounding of activations takes a tenth of it."""
_checked: dict[PanelFormat, bool] = {}


def is_right(form: PanelFormat, linear: LinearOp, weight: GroupedWeight) -> bool:
    """Whether products of a format are those of torch, but for rounded activations.

    Args:
        form: of the panels.
        linear: without bias and gate.
        weight: that was packed, shape ``[out, in]``.
    """
    if form not in _checked:
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(_ROWS, weight.codes.shape[1], generator=draw)
        some = torch.arange(min(_OUTPUTS, len(weight.codes)))
        expected = x @ dense(select_rows(weight, some)).t()
        error = (linear(x)[:, : len(some)] - expected).norm()
        _checked[form] = bool(error <= _MOST_ERROR * expected.norm())
        if not _checked[form]:
            _log.warning(
                "integer products of %s weights are wrong on this processor, so their activations"
                " stay floats, which is slower: please report it",
                form.name,
            )
    return _checked[form]
