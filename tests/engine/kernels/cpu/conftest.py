"""Fixtures: a team of two threads for compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gatewayd_engine.kernels.cpu.select import thread_team
from gatewayd_engine.kernels.cpu.team import ThreadTeam

# Threads of torch spin for a while after an operation, on the processors of the team's.
torch.set_num_threads(1)


@pytest.fixture
def team() -> Iterator[ThreadTeam]:
    found = thread_team(2)
    if found is None:
        pytest.skip("no compiled kernels for this processor")
    yield found
    found.use(found.size)
