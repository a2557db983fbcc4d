"""Doctor check of the CPUs, on machines that this one is not."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.cli.doctor import cpus
from gatewayd.config.tables import Config
from gatewayd_engine.process.machine_cpus import MachineCpus

ONE = MachineCpus((0,), {0: 0}, {0: (0,)})
FOUR = MachineCpus(tuple(range(4)), {i: i for i in range(4)}, {0: tuple(range(4))})
TWO_NODES = MachineCpus(
    tuple(range(16)),
    {i: i % 8 for i in range(16)},
    {0: (0, 1, 2, 3, 8, 9, 10, 11), 1: (4, 5, 6, 7, 12, 13, 14, 15)},
)
QUOTA = MachineCpus(FOUR.allowed, FOUR.core_of, FOUR.nodes, 1.5)


def judged(machine: MachineCpus, **engine: Any) -> tuple[str, str]:
    """State and text, with settings of ``[engine]``."""
    config = Config.model_validate({"engine": {"device": "cpu", **engine}})
    finding = cpus.judge(config, machine, {"avx2", "fpu"})
    return finding.state, finding.text


@pytest.mark.parametrize(
    ("machine", "engine", "text"),
    [
        (FOUR, {}, "4 cores; 3 threads for an engine; avx2"),
        (QUOTA, {}, "4 cores, of which the cgroup may use 1.5; 1 threads for an engine; avx2"),
        (FOUR, {"cpus": "2-3"}, "4 cores; 2 threads for an engine, the first on CPUs 2-3; avx2"),
        (
            TWO_NODES,
            {},
            "8 cores, 16 CPUs on 2 NUMA nodes (0: 0-3,8-11; 1: 4-7,12-15); 3 threads for an"
            " engine, the first on CPUs 0-3,8-11; avx2; for the other NUMA nodes set [engine]"
            " replicas = 2",
        ),
        (
            TWO_NODES,
            {"replicas": 2},
            "8 cores, 16 CPUs on 2 NUMA nodes (0: 0-3,8-11; 1: 4-7,12-15); 4 threads for an"
            " engine, the first on CPUs 0-3,8-11; avx2",
        ),
    ],
)
def test_it_shows_cores_nodes_quota_and_threads(
    machine: MachineCpus, engine: dict[str, Any], text: str
) -> None:
    assert judged(machine, **engine) == ("ok", text)


def test_a_single_core_is_a_warning() -> None:
    state, text = judged(ONE)
    assert (state, "share one core" in text) == ("warning", True)


def test_cpus_that_the_daemon_may_not_use_are_a_failure() -> None:
    state, text = judged(FOUR, cpus="3-4")
    assert (state, "CPU 4 cannot be used" in text) == ("failure", True)


def test_this_machine_is_described() -> None:
    assert "threads for an engine" in cpus.cpu(Config()).text
