"""Lock files: hashes for every package, within ``pyproject.toml``'s bounds."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
LOCKS = {"gatewayd": [], "dev": ["dev"]}
"""Each lock's optional dependencies."""
MACHINES = [
    {"python_version": python, "python_full_version": f"{python}.1", "platform_machine": machine}
    for python in ("3.11", "3.12", "3.13")
    for machine in ("x86_64", "aarch64")
]


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """What a lock pins, with hashes."""
    text = (ROOT / f"etc/lock/{name}.txt").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = []
    for entry in "\n".join(lines).replace("\\\n", "").splitlines():
        requirement, *hashes = re.split(r"\s+--hash=", entry.strip())
        found.append((Requirement(requirement), hashes))
    return found


def pinned(name: str, machine: dict[str, str]) -> dict[str, str]:
    """Versions that a lock gives one kind of machine."""
    found: dict[str, str] = {}
    for requirement, _ in entries(name):
        if requirement.marker is None or requirement.marker.evaluate(dict(machine)):
            assert requirement.name not in found, requirement
            (specifier,) = requirement.specifier
            found[requirement.name] = specifier.version
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_file_has_a_hash_and_every_distribution_one_version(name: str) -> None:
    found = entries(name)
    assert len(found) > 50
    for requirement, hashes in found:
        assert [one.operator for one in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement
    assert "torch" not in {requirement.name for requirement, _ in found}
    assert "://" not in (ROOT / f"etc/lock/{name}.txt").read_text()


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: "-".join(m.values()))
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_the_project_asks_for(name: str, machine: dict[str, str]) -> None:
    own = {key: str(value) for key, value in default_environment().items()}
    here = {**own, "sys_platform": "linux", "platform_system": "Linux", **machine}
    asked = [*PROJECT["dependencies"]]
    for extra in LOCKS[name]:
        asked += PROJECT["optional-dependencies"][extra]
    versions = {**pinned(name, here), "torch": torch_version()}
    for requirement in map(Requirement, asked):
        if requirement.marker is None or requirement.marker.evaluate(dict(here)):
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"make lock: {requirement}"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_lacks_nothing_that_its_distributions_ask_for(name: str) -> None:
    """Of this machine; pip would fetch what is missing without a hash, or run without it."""
    here = {key: str(value) for key, value in default_environment().items()}
    versions = {**pinned(name, here), "torch": torch_version()}
    for one in versions:
        asked = [Requirement(line) for line in metadata.requires(one) or []]
        for requirement in asked:
            if requirement.marker is None or requirement.marker.evaluate({**here, "extra": ""}):
                wanted = canonicalize_name(requirement.name)
                assert wanted in versions, f"{one} asks for {requirement}"
                assert requirement.specifier.contains(versions[wanted]), f"{one}: {requirement}"


def test_what_a_gpu_machine_needs_besides_is_pinned_as_well() -> None:
    found = entries("gpu")
    assert [requirement.name for requirement, _ in found] == ["apache-tvm-ffi", "flashinfer-python"]
    for requirement, hashes in found:
        assert [one.operator for one in requirement.specifier] == ["=="], requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement
    (asked,) = [
        r for r in map(Requirement, PROJECT["optional-dependencies"]["gpu"]) if "flash" in r.name
    ]
    (version,) = found[1][0].specifier
    assert asked.specifier.contains(version.version), "FlashInfer is pinned in etc/lock/make.sh"


def torch_version() -> str:
    (version,) = re.findall(r"^TORCH +\?= torch==(\S+)$", MAKEFILE, re.MULTILINE)
    return str(version)


def test_an_installation_takes_files_by_their_hashes() -> None:
    """And nothing besides but torch and this project; a lock is of the torch that is installed."""
    rule = MAKEFILE.partition("$(VENV)/.installed: ")[2].partition("\n\n")[0]
    calls = [line.strip() for line in rule.splitlines() if line.startswith("\t$(PIP)")]
    assert calls == [
        "$(PIP) --require-hashes --no-deps --only-binary :all: --requirement etc/lock/dev.txt",
        "$(PIP) $(TORCH)",
        "$(PIP) --no-deps --no-build-isolation --editable .",
    ]
    assert rule.count("pip install") == rule.count("pip download") == 0
    (fetch,) = re.findall(r"\t\$\(FETCH\) (.*?)\n(?=\t)", rule.replace("\\\n\t", ""), re.DOTALL)
    assert fetch.startswith("--require-hashes --no-deps --only-binary :all: ")
    for name in LOCKS:
        first = (ROOT / f"etc/lock/{name}.txt").read_text().partition("\n")[0]
        assert first.endswith(f"torch=={torch_version()}")
