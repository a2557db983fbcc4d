"""CPUs of engines, on machines of made ``/sys`` and ``/proc`` folders."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

import pytest

from gatewayd_engine.process.engine_cpus import EngineCpus, bind, engine_cpus
from gatewayd_engine.process.machine_cpus import MachineCpus, cpu_list, parse_cpu_list


def made_machine(
    root: Path,
    *,
    nodes: dict[int, str],
    siblings: int = 1,
    quotas: dict[str, str] | None = None,
    group: str = "/",
    allowed: str = "",
) -> MachineCpus:
    """Read a machine whose CPU ``i`` is a sibling of ``i + cores``, as Linux numbers them."""
    devices = root / "sys/devices/system"
    cpus = [cpu for inside in nodes.values() for cpu in parse_cpu_list(inside)]
    num_cores = len(cpus) // siblings
    for cpu in cpus:
        folder = devices / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        core = range(cpu % num_cores, len(cpus), num_cores)
        (folder / "thread_siblings_list").write_text(cpu_list(core) + "\n")
    for node, inside in nodes.items():
        folder = devices / f"node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(inside + "\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{group}\n")
    for path, text in (quotas or {}).items():
        folder = root / "sys/fs/cgroup" / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(text + "\n")
    return MachineCpus.read(root, parse_cpu_list(allowed) if allowed else cpus)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("8,0-1\n", (0, 1, 8)),
        ("3,1-3, 5-5", (1, 2, 3, 5)),
    ],
)
def test_lists_of_cpus_are_read_as_linux_writes_them(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus
    assert parse_cpu_list(cpu_list(cpus)) == cpus


def test_cpus_are_written_as_ranges() -> None:
    assert cpu_list([4, 0, 1, 2, 9, 8]) == "0-2,4,8-9"
    assert cpu_list([]) == ""


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "0x3", "3-1", "1-2-3", "99999999"])
def test_anything_else_is_refused_with_the_part(text: str) -> None:
    with pytest.raises(ValueError, match=r"CPU|range"):
        parse_cpu_list(text)


def test_without_sys_each_cpu_is_a_core_of_one_node(tmp_path: Path) -> None:
    machine = MachineCpus.read(tmp_path, [2, 5])
    assert machine == MachineCpus((2, 5), {2: 2, 5: 5}, {0: (2, 5)}, None)


def test_nodes_have_only_the_cpus_that_are_allowed(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-3", 1: "4-7", 2: "8-11"}, allowed="2-5")
    assert machine.nodes == {0: (2, 3), 1: (4, 5)}


@pytest.mark.parametrize(
    ("group", "quotas", "quota"),
    [
        ("/", {}, None),
        ("/", {"/": "max 100000"}, None),
        ("/", {"/": "250000 100000"}, 2.5),
        # The limit of a group above holds as well.
        ("/a/b", {"/": "max 100000", "/a": "150000 100000", "/a/b": "400000 100000"}, 1.5),
        # The path as the host sees it, which does not exist in the container.
        ("/../../x", {"/": "200000 100000"}, 2.0),
    ],
)
def test_the_quota_is_the_lowest_of_the_groups(
    tmp_path: Path, group: str, quotas: dict[str, str], quota: float | None
) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-7"}, group=group, quotas=quotas)
    assert machine.quota == quota


def test_one_engine_leaves_a_core_to_the_gateway_and_is_not_bound(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-7"})
    assert engine_cpus(machine) == EngineCpus(tuple(range(8)), 7, is_bound=False, nodes=(0,))


@pytest.mark.parametrize("cpus", [1, 2, 3])
def test_of_a_few_cores_none_is_left(tmp_path: Path, cpus: int) -> None:
    assert engine_cpus(made_machine(tmp_path, nodes={0: f"0-{cpus - 1}"})).threads == cpus


def test_siblings_get_no_threads_of_their_own(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-15"}, siblings=2)
    assert machine.cores(machine.allowed) == tuple(range(8))
    assert engine_cpus(machine).threads == 7


def test_two_cores_with_siblings_have_two_threads(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-3"}, siblings=2)
    assert engine_cpus(machine) == EngineCpus((0, 1, 2, 3), 2, is_bound=False, nodes=(0,))
    first, second = (engine_cpus(machine, replica=i, replicas=2) for i in (0, 1))
    assert first == EngineCpus((0, 2), 1, is_bound=True, nodes=(0,))
    assert second == EngineCpus((1, 3), 1, is_bound=True, nodes=(0,))


def test_a_single_core_uses_both_siblings(tmp_path: Path) -> None:
    assert engine_cpus(made_machine(tmp_path, nodes={0: "0-1"}, siblings=2)).threads == 2


@pytest.mark.parametrize(
    ("quota", "threads"), [("200000", 2), ("50000", 1), ("800000", 7), ("9900000", 63)]
)
def test_a_quota_limits_the_threads_and_binds_none(
    tmp_path: Path, quota: str, threads: int
) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-63"}, quotas={"/": f"{quota} 100000"})
    chosen = engine_cpus(machine)
    assert (chosen.threads, chosen.is_bound) == (threads, False)


def test_a_quota_that_limits_nothing_is_none(tmp_path: Path) -> None:
    nodes = {0: "0-7,16-23", 1: "8-15,24-31"}
    machine = made_machine(tmp_path, nodes=nodes, siblings=2, quotas={"/": "3200000 100000"})
    cpus = (*range(8), *range(16, 24))
    assert engine_cpus(machine) == EngineCpus(cpus, 7, is_bound=True, nodes=(0,))


def test_an_engine_with_a_quota_is_not_cut_to_a_node(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-31", 1: "32-63"}, quotas={"/": "4800000 100000"})
    assert engine_cpus(machine) == EngineCpus(tuple(range(64)), 47, is_bound=False, nodes=(0, 1))


def test_replicas_of_a_quota_share_it(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-63"}, quotas={"/": "800000 100000"})
    assert engine_cpus(machine, replica=1, replicas=2).threads == 4


def test_an_engine_stays_on_one_node(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-7,16-23", 1: "8-15,24-31"}, siblings=2)
    chosen = engine_cpus(machine)
    cpus = (*range(8), *range(16, 24))
    assert chosen == EngineCpus(cpus, 7, is_bound=True, nodes=(0,))


def test_an_engine_with_more_threads_than_a_node_has_cores_takes_all(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-7", 1: "8-15"})
    chosen = engine_cpus(machine, threads=12)
    assert chosen == EngineCpus(tuple(range(16)), 12, is_bound=False, nodes=(0, 1))


@pytest.mark.parametrize(("replicas", "nodes"), [(2, [0, 1]), (4, [0, 0, 1, 1])])
def test_replicas_divide_the_cores_by_node(tmp_path: Path, replicas: int, nodes: list[int]) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-7", 1: "8-15"})
    shares = [engine_cpus(machine, replica=i, replicas=replicas) for i in range(replicas)]
    assert sorted(cpu for share in shares for cpu in share.cpus) == list(range(16))
    assert [share.nodes for share in shares] == [(node,) for node in nodes]
    assert all(share.is_bound for share in shares)
    assert [share.threads for share in shares] == [16 // replicas] * replicas


def test_replicas_that_outnumber_the_cpus_share_all(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-1"})
    chosen = [engine_cpus(machine, replica=i, replicas=3) for i in range(3)]
    assert all(one == EngineCpus((0, 1), 2, is_bound=False, nodes=(0,)) for one in chosen)


def test_replicas_that_outnumber_the_cores_of_nodes_share_all(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-3", 1: "4-7"})
    chosen = [engine_cpus(machine, replica=i, replicas=9) for i in range(9)]
    assert all(one.cpus == machine.allowed and not one.is_bound for one in chosen)


def test_listed_cpus_have_a_thread_for_each_core(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-15"}, siblings=2)
    chosen = engine_cpus(machine, listed=(2, 3, 10, 11))
    assert chosen == EngineCpus((2, 3, 10, 11), 2, is_bound=True, nodes=(0,))
    halves = [engine_cpus(machine, listed=(2, 3, 10, 11), replica=i, replicas=2) for i in (0, 1)]
    assert [half.cpus for half in halves] == [(2, 10), (3, 11)]


def test_listed_cpus_of_interleaved_nodes_are_divided_by_node(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0,2,4,6", 1: "1,3,5,7"})
    listed = tuple(range(8))
    halves = [engine_cpus(machine, listed=listed, replica=i, replicas=2) for i in (0, 1)]
    assert [half.cpus for half in halves] == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_replicas_divide_the_listed_cpus(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-7"})
    chosen = [engine_cpus(machine, listed=(2, 3, 6, 7), replica=i, replicas=2) for i in (0, 1)]
    assert [one.cpus for one in chosen] == [(2, 3), (6, 7)]


def test_listed_cpus_of_several_nodes_are_an_engine_of_both(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-3", 1: "4-7"})
    assert engine_cpus(machine, listed=(2, 3, 4)).nodes == (0, 1)


def test_a_listed_cpu_that_is_not_allowed_is_refused_with_what_to_do(tmp_path: Path) -> None:
    machine = made_machine(tmp_path, nodes={0: "0-7"}, allowed="0-3")
    with pytest.raises(ValueError, match=r"\[engine\] cpus: CPU 4-5 .*only 0-3.*CPUAffinity"):
        engine_cpus(machine, listed=(3, 4, 5))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_binding_keeps_the_process_to_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: asked.append(cpus))
    bind(EngineCpus((0, 1), 2, is_bound=False, nodes=(0,)))
    assert asked == []
    bind(EngineCpus((1,), 1, is_bound=True, nodes=(0,)))
    assert asked == [(1,)]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_a_process_that_cannot_be_bound_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(process: int, cpus: tuple[int, ...]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    bind(EngineCpus((1,), 1, is_bound=True, nodes=(0,)))
    assert "not kept to the CPUs 1: " in caplog.text


def test_memory_of_several_nodes_that_cannot_be_interleaved_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    masks: list[tuple[int, int, int]] = []

    class System:
        def __init__(self, *_: object, **__: object) -> None: ...

        def syscall(self, number: int, mode: int, mask: list[int], bits: object) -> int:
            masks.append((mode, mask[0], mask[1]))
            return -1

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(ctypes, "CDLL", System)
    bind(EngineCpus((0, 1), 2, is_bound=False, nodes=(0, 2, 65)))
    assert masks == [(3, 0b101, 0b10)]
    assert "numactl --interleave=0,2,65" in caplog.text
