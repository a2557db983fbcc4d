"""GPU kit: content, discovery, transport."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.engine.attention.flashinfer_wheel import wheel
from tests.gpu.kit import environment, pack, parts
from tests.gpu.kit.lock import FLASHINFER, ROOT, names, pinned
from tests.gpu.kit.travel import MIB, MOST, Travel, tree_bytes
from tests.gpu.kit.wheels import KitError, wheel_of
from tests.packaging.gpu_stubs import FLASHINFER_FILES, MODULES, write_modules, write_wheels

PACKAGE = "flashinfer"
WHEELS = Path(sys.prefix, "wheels")
KIT_MIB = 19
"""What a kit takes with the compiled modules of attention: 17.3 MiB in November 2026."""
IMAGE = {
    *("aiohttp", "jinja2", "numpy", "packaging", "pluggy", "prometheus-client", "rich"),
    *("safetensors", "tokenizers", "torch", "typer", "uvloop"),
}
"""What the machine has by itself."""
UNUSED = {"textual", "textual-serve", "plotext", "llvmlite", "huggingface-hub"}
"""The console, the plot of a sweep, the kernels of CPUs and pulls are not needed there."""
ABSENT = {
    "huggingface_hub",
    "llvmlite",
    "plotext",
    "textual",
    "textual_serve",
    "xgrammar",
    "flashinfer",
    "humming",
    "triton",
}
"""Modules without which a daemon and a bench still start."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed kit of stubs."""
    folder = tmp_path_factory.mktemp("kit")
    wheels, modules = write_wheels(folder / "wheels"), write_modules(folder / "aot")
    assert pack.pack(folder / ".gpu", wheels, modules, "", 0) == ["batch_prefill_x", "cascade"]
    return folder


def inside(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        return {member.name for member in packed if member.isfile()}


def test_a_kit_has_the_packages_and_attentions_part_of_flashinfer(kit: Path) -> None:
    found = inside(kit / ".gpu" / pack.ARCHIVE)
    listed = {f"{name.replace('-', '_')}/__init__.py" for name in names(pack.HERE / "packages.txt")}
    kept = {name for name, travels in FLASHINFER_FILES.items() if travels}
    compiled = {f"flashinfer/data/aot/{name}" for name, travels in MODULES.items() if travels}
    # What nothing imports is left out; what an installer would move is moved.
    assert found == listed | kept | compiled | {"from_data.py"}


def test_the_same_wheels_make_the_same_kit(kit: Path, tmp_path: Path) -> None:
    pack.pack(tmp_path, kit / "wheels", kit / "aot", "", 0)
    made = (tmp_path / pack.ARCHIVE).read_bytes()
    assert made == (kit / ".gpu" / pack.ARCHIVE).read_bytes()


def test_a_kit_without_compiled_modules_is_a_kit(kit: Path, tmp_path: Path) -> None:
    assert pack.pack(tmp_path, kit / "wheels", tmp_path / "nowhere", "", 0) == []
    assert not [name for name in inside(tmp_path / pack.ARCHIVE) if "/aot/" in name]


def test_what_is_missing_is_named(kit: Path, tmp_path: Path) -> None:
    with pytest.raises(KitError, match="etc/lock does not pin textuall"):
        pack.pack(tmp_path, kit / "wheels", tmp_path, "textuall", 0)
    with pytest.raises(KitError, match="has no wheel of textual"):
        pack.pack(tmp_path, kit / "wheels", tmp_path, "textual", 0)


@pytest.mark.parametrize("member", ["aot/../../outside.so", "etc/passwd", "aot/cascade/a/b.so"])
def test_archives_of_modules_hold_nothing_else(kit: Path, tmp_path: Path, member: str) -> None:
    folder = write_modules(tmp_path / "aot", member=member)
    with pytest.raises(KitError, match="no compiled module"):
        pack.pack(tmp_path / "kit", kit / "wheels", folder, "", 0)


def test_modules_of_another_version_are_left_out(kit: Path, tmp_path: Path) -> None:
    folder = write_modules(tmp_path / "aot", "flashinfer-0.7.1-sm90a.tar.xz")
    assert pack.pack(tmp_path / "kit", kit / "wheels", folder, "", 0) == []


def test_programs_find_the_kit_and_the_plugins_on_a_machine_without_the_project(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = kit / ".gpu" / pack.ARCHIVE
    monkeypatch.setattr(environment, "is_installed", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(environment, "PYTHON", sys.version_info[:2])
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    found = environment.environment(archive)
    program = (
        "import msgspec, flashinfer, gatewayd_engine, gatewayd_hooks, tests.gpu.kit.lock\n"
        "from importlib import metadata\n"
        "print(msgspec.__file__, flashinfer.__version__)\n"
        "found = metadata.entry_points(group='gatewayd', name='executor.local')\n"
        "print({point.value for point in found})"
    )
    another = tmp_path / "image" / "tests"
    another.mkdir(parents=True)
    (another / "__init__.py").write_text("raise ImportError('not ours')\n")
    found["PYTHONPATH"] += f":{another.parent}"
    said = subprocess.run(
        [sys.executable, "-S", "-c", program],  # without what is installed here
        env={**os.environ, **found},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith(f"{tmp_path}/gatewayd-gpu-")
    assert "stub" in said
    assert "{'gatewayd_exec_local'}" in said
    assert found["FLASHINFER_WORKSPACE_BASE"].startswith(str(tmp_path))
    marks = list(tmp_path.glob("*/*/done"))
    before = [mark.stat().st_mtime_ns for mark in marks]
    environment.environment(archive)
    assert [mark.stat().st_mtime_ns for mark in marks] == before, "unpacked twice"
    for library, preloaded in (("libc.so.6", "libc.so.6"), ("libmissing.so.1", None)):
        monkeypatch.setattr(environment, "_DRIVER", library)
        assert environment.environment(archive).get("LD_PRELOAD") == preloaded
    monkeypatch.setattr(environment, "PYTHON", (2, 7))
    with pytest.raises(RuntimeError, match=r"the kit is for Python 2\.7"):
        environment.environment(archive)
    with pytest.raises(RuntimeError, match=r"make gpu-kit"):
        environment.environment(tmp_path / "nothing")


def test_where_the_project_is_installed_the_kit_is_not_used() -> None:
    found = environment.environment(Path("/nowhere"))
    assert "FLASHINFER_WORKSPACE_BASE" not in found
    assert found["PYTHONPATH"].startswith(f"{ROOT}{os.pathsep}{ROOT}/engine")


def test_everything_that_travels_is_counted_and_is_below_the_limit(tmp_path: Path) -> None:
    run = ["git", "-c", "init.defaultBranch=main", "init", "-q", str(tmp_path)]
    subprocess.run(run, check=True)
    (tmp_path / ".gitignore").write_text("*.ignored\n")
    for name in ("a", "b.ignored"):
        (tmp_path / name).write_bytes(bytes(1000))
    assert tree_bytes(tmp_path) == 1000 + len("*.ignored\n")
    assert Travel(20 * MIB, 43 * MIB).fits
    assert not Travel(20 * MIB, 43 * MIB + 1).fits
    assert str(Travel(MIB, 2 * MIB)) == "kit 1.0 MiB, working tree 2.0 MiB, together 3.0 of 64 MiB"
    tree = tree_bytes(ROOT)
    assert tree + KIT_MIB * MIB < MOST, f"the working tree has {tree / MIB:.1f} MiB"


def test_too_much_is_refused(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["pack", "--out", str(tmp_path), "--wheels", str(kit / "wheels")]
    )
    monkeypatch.setenv("GPU_AOT_FOLDER", str(kit / "aot"))
    monkeypatch.setattr(pack, "travelling", lambda *_: Travel(30 * MIB, 30 * MIB))
    assert pack.main() == 0
    assert "together 60.0 of 64 MiB" in capsys.readouterr().out
    monkeypatch.setattr(pack, "travelling", lambda *_: Travel(34 * MIB, 30 * MIB))
    assert pack.main() == 1
    assert "too much to travel" in capsys.readouterr().err


def test_every_dependency_is_in_the_kit_or_on_the_machine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {Requirement(line).name for line in project["dependencies"]}
    assert wanted <= {*names(pack.HERE / "packages.txt")} | IMAGE | UNUSED
    assert {*names(pack.HERE / "packages.txt"), FLASHINFER} <= pinned().keys()


def test_the_commands_import_nothing_that_the_machine_lacks() -> None:
    program = (
        "import sys, importlib\n"
        f"for name in {sorted(ABSENT)}: sys.modules[name] = None\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    ours = ["gatewayd.daemon.run", "gatewayd.cli", "gatewayd.cli.bench.cli"]
    ours += [f"gatewayd.cli.bench.{kind}.cli" for kind in ("offline", "served")]
    ours += [f"gatewayd.cli.{name}" for name in ("serve", "warmup", "config", "doctor")]
    done = subprocess.run(
        [sys.executable, "-c", program, *ours], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_flashinfers_kept_files_are_in_its_wheel_and_import_no_others() -> None:
    kept = names(parts.PYTHON)
    with zipfile.ZipFile(wheel_of(FLASHINFER, WHEELS)) as archive:
        there = {name.removeprefix("flashinfer/") for name in archive.namelist()}
        assert set(kept) <= there
        missing = {
            f"{name}: {module}.py"
            for name in kept
            for module in _imported(archive.read(f"flashinfer/{name}").decode(), name)
            if f"{module}.py" in there and f"{module}.py" not in kept
        }
    assert not missing


def test_what_our_files_import_of_flashinfer_travels_with_its_sources() -> None:
    kept = frozenset(names(parts.PYTHON))
    sources = tuple(names(parts.SOURCES))
    modules, compiled = set[str](), set[str]()
    for folder in ("engine", "tests/gpu"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                    module = node.module or ""
                    modules.add("/".join(module.split(".")[1:]))
                    for alias in node.names:
                        found = wheel().find(module, alias.name)
                        compiled |= _sources(found) if "gen_" in alias.name else set()
    for module in modules:
        assert {f"{module}.py", f"{module}/__init__.py".lstrip("/")} & kept, module
    assert {"cascade.cu", "tinygemm2.cu", "mm_bf16_cublaslt.cu"} <= compiled
    for name in compiled:
        assert parts.is_kept(f"{PACKAGE}/data/csrc/{name}", kept, sources), name


def _sources(found: ast.AST | None) -> set[str]:
    """Files of C++ that a function names."""
    inside = ast.walk(found) if found is not None else ()
    constants = [node.value for node in inside if isinstance(node, ast.Constant)]
    return {str(one) for one in constants if re.fullmatch(r"\w+\.(cu|jinja)", str(one))}


_IMPORT = re.compile(r"^from (?:(\.+)([\w.]*)|flashinfer\.([\w.]+)) import ", re.MULTILINE)


def _imported(text: str, name: str) -> list[str]:
    """Modules of the same package that are imported when the module is, whatever happens."""
    found = []
    for dots, below, absolute in _IMPORT.findall(text):
        above = name.split("/")[: -len(dots)] if dots else []
        found.append("/".join([*above, *(below or absolute).split(".")]).rstrip("/"))
    return found
