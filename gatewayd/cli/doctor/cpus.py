"""Check of the CPUs: what the daemon may use, and what an engine takes of that."""

from __future__ import annotations

from pathlib import Path

from gatewayd.cli.doctor.finding import Finding
from gatewayd.config.device_defaults import sizes
from gatewayd.config.tables import Config
from gatewayd_engine.process.engine_cpus import engine_cpus
from gatewayd_engine.process.machine_cpus import MachineCpus, cpu_list, parse_cpu_list

_VECTORS = frozenset(("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve"))


def cpu(config: Config) -> Finding:
    """Check the CPUs that an engine gets, and the vector instructions."""
    return judge(config, MachineCpus.read(), _cpu_features())


def judge(config: Config, machine: MachineCpus, features: set[str]) -> Finding:
    """Describe a machine's CPUs, and the share of the first engine.

    Args:
        config: of the daemon.
        machine: its CPUs.
        features: names of instruction sets, as the kernel knows them.
    """
    engine = config.engine
    try:
        chosen = engine_cpus(
            machine,
            threads=engine.threads,
            listed=parse_cpu_list(engine.cpus) if engine.cpus else (),
            replicas=engine.replicas,
        )
    except ValueError as error:
        return Finding("cpu", "failure", str(error))
    share = f"{chosen.threads} threads for an engine"
    if chosen.is_bound:
        share += f", the first on CPUs {cpu_list(chosen.cpus)}"
    vectors = ", ".join(sorted(features & _VECTORS)) or "no known vector instructions"
    text = f"{_machine(machine)}; {share}; {vectors}"
    if len(machine.allowed) < 2:
        return Finding("cpu", "warning", f"{text}; the gateway and the engine share one core")
    has_idle = len(machine.nodes) > len(chosen.nodes) and engine.replicas == 1
    if has_idle and engine.cpus is None and sizes(engine).device == "cpu":
        text += f"; for the other NUMA nodes set [engine] replicas = {len(machine.nodes)}"
    return Finding("cpu", "ok", text)


def _machine(machine: MachineCpus) -> str:
    cpus, cores = machine.allowed, machine.cores(machine.allowed)
    text = f"{len(cores)} cores"
    if len(cpus) > len(cores):
        text += f", {len(cpus)} CPUs"
    if len(machine.nodes) > 1:
        nodes = (f"{node}: {cpu_list(inside)}" for node, inside in machine.nodes.items())
        text += f" on {len(machine.nodes)} NUMA nodes ({'; '.join(nodes)})"
    if machine.quota is not None:
        text += f", of which the cgroup may use {machine.quota:g}"
    return text


def _cpu_features() -> set[str]:
    """Return the names of instruction sets; empty where the system has no such file."""
    file = Path("/proc/cpuinfo")
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()
