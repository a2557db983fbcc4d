"""CPUs and threads of one engine: its share of the cores, in one NUMA node if possible."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

from gatewayd_engine.process.machine_cpus import MachineCpus, cpu_list

_log = logging.getLogger(__name__)
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Numbers of Linux's system call."""
_INTERLEAVE = 3
_FEW_CORES = 3


@dataclass(frozen=True, slots=True)
class EngineCpus:
    """What an engine computes on.

    Attributes:
        cpus: CPUs of its threads, ascending.
        threads: number of threads that compute steps.
        is_bound: whether the process is to be kept to ``cpus``; else these are all it may use.
        nodes: NUMA nodes of ``cpus``.
    """

    cpus: tuple[int, ...]
    threads: int
    is_bound: bool
    nodes: tuple[int, ...]


def engine_cpus(
    machine: MachineCpus,
    *,
    threads: int | None = None,
    listed: Sequence[int] = (),
    replica: int = 0,
    replicas: int = 1,
) -> EngineCpus:
    """Choose the CPUs and threads of an engine.

    Replicas divide the cores, node by node, with a thread for each core: SMT siblings compete for
    the same vector units. They count where there is a single core, as engines measure whether they
    help. A share is cut to the node that has most of it, unless ``threads`` asks for more, as the
    memory of another node is slower. A single engine of more than three cores leaves one to the
    gateway.

    Where a quota limits the process nothing is bound, unless CPUs are listed: other containers
    count CPUs from 0, too.

    Args:
        machine: its CPUs.
        threads: of the engine, as configured.
        listed: CPUs of all engines, as configured; empty for all that are allowed.
        replica: index of this engine.
        replicas: number of engines.

    Raises:
        ValueError: CPUs are listed that this process may not use.
    """
    if missing := sorted(set(listed) - set(machine.allowed)):
        raise ValueError(
            f"[engine] cpus: CPU {cpu_list(missing)} cannot be used, only"
            f" {cpu_list(machine.allowed)}; list some of these, or let the service have more"
            " (CPUAffinity of its unit, cpuset of its container)"
        )
    usable = tuple(listed) or machine.allowed
    cores = machine.cores(usable)
    # Replicas that outnumber the cores share them all.
    is_shared = replicas > len(cores)
    begin, end = (len(cores) * i // replicas for i in (replica, replica + 1))
    share = cores if is_shared else cores[begin:end]
    is_limited = machine.quota is not None and machine.quota < len(usable)
    if not (listed or is_limited or is_shared):
        by_node = [tuple(c for c in share if c in inside) for inside in machine.nodes.values()]
        largest = max(by_node, key=len)
        if threads is None or threads <= len(largest):
            share = largest
    chosen = {machine.core_of[cpu] for cpu in share}
    kept = tuple(sorted(cpu for cpu in usable if machine.core_of[cpu] in chosen))
    count = len(share) if len(cores) > 1 else len(kept)
    if is_limited and machine.quota is not None:
        count = min(count, max(1, int(machine.quota / replicas)))
    if replicas == 1 and not listed and count > _FEW_CORES:
        count -= 1
    is_bound = bool(listed) or not (is_limited or kept == machine.allowed)
    kept = kept if is_bound else machine.allowed
    return EngineCpus(kept, threads or count, is_bound, machine.nodes_of(kept))


def bind(chosen: EngineCpus) -> None:
    """Keep this process, and threads that start later, to its CPUs; other systems ignore it.

    Where the system forbids it, a warning is logged.

    Memory is taken from the node of the thread that touches it first, which is one of these. Of an
    engine on several nodes the pages alternate between them, as all threads read all weights.
    """
    if chosen.is_bound and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, chosen.cpus)
        except OSError as error:
            _log.warning("not kept to the CPUs %s: %s", cpu_list(chosen.cpus), error)
    number = _SET_MEMPOLICY.get(platform.machine())
    if len(chosen.nodes) < 2 or number is None or platform.system() != "Linux":
        return
    words = max(chosen.nodes) // 64 + 1
    mask = (ctypes.c_uint64 * words)()
    for node in chosen.nodes:
        mask[node // 64] |= 1 << node % 64
    system = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    if system.syscall(number, _INTERLEAVE, mask, ctypes.c_ulong(64 * words + 1)):
        reason = os.strerror(ctypes.get_errno())
        nodes = cpu_list(chosen.nodes)
        _log.warning(
            "memory is not interleaved over the NUMA nodes %s: %s; start the daemon with"
            " `numactl --interleave=%s`, or one replica for each node",
            *(nodes, reason, nodes),
        )
