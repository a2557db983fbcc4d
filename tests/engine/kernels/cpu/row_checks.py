"""Checks that a row of a product depends on its own numbers alone."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.model.linears.panel_linear import PanelLinear


def assert_bits_are_of_the_row(made: PanelLinear, x: torch.Tensor, team: ThreadTeam) -> None:
    """Compare rows in batches of all sizes, on one to three threads, with each row alone."""
    try:
        team.use(1)
        alone = torch.cat([made(row[None]) for row in x])
        for threads in (1, 2, 3):
            team.use(threads)
            for rows in range(1, len(x) + 1):
                first = (rows * 7) % (len(x) + 1 - rows)
                chosen = slice(first, first + rows)
                assert torch.equal(made(x[chosen]), alone[chosen])
    finally:
        team.use(team.size)


def assert_it_stays_in_its_row(
    made: PanelLinear, x: torch.Tensor, number: float, data: st.DataObject
) -> None:
    """Put a number that is not finite into a drawn place: only its row of the outputs changes."""
    expected = made(x)
    row, column = (data.draw(st.integers(0, size - 1)) for size in x.shape)
    x[row, column] = number
    others = torch.arange(len(x)) != row
    outputs = made(x)
    assert torch.equal(outputs[others], expected[others])
    assert not torch.isfinite(outputs[row]).any()
