"""Stub wheels and compiled modules: a kit is packed without a network."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from tests.gpu.kit.lock import FLASHINFER, names, pinned
from tests.gpu.kit.pack import HERE

FLASHINFER_FILES = {
    "flashinfer/__init__.py": True,
    "flashinfer/jit/core.py": True,
    "flashinfer/gdn_decode_of_another_chip.py": False,
    "flashinfer/data/include/flashinfer/page.cuh": True,
    "flashinfer/data/csrc/batch_prefill.cu": True,
    "flashinfer/data/csrc/xqa/mha.cu": True,
    "flashinfer/data/csrc/fused_moe/batch_prefill.cu": False,
    "flashinfer/data/csrc/gemm.cu": False,
    "flashinfer/data/cutlass/include/cutlass.h": True,
    "flashinfer/data/cutlass/test/unit.cu": False,
    "flashinfer_python-0.7.2.post1.dist-info/METADATA": True,
    "flashinfer_python-0.7.2.post1.dist-info/RECORD": False,
}
"""And whether they travel."""
MODULES = {
    "cascade/cascade.so": True,
    "batch_prefill_x/batch_prefill_x.so": True,
    "page/page.so": False,
}


def write_wheels(folder: Path) -> Path:
    """A wheel for each package of the kit."""
    folder.mkdir()
    lock = pinned()
    for name in names(HERE / "packages.txt"):
        module = name.replace("-", "_")
        files = {f"{module}/__init__.py": f"NAME = {name!r}\n"}
        if name == "sqlalchemy":
            files |= {"sqlalchemy/testing/a.py": "", "sqlalchemy/engine/_x_cy.cpython.so": ""}
            files |= {f"sqlalchemy-{lock[name].version}.data/purelib/from_data.py": ""}
        _write(folder / f"{module}-{lock[name].version}-py3-none-any.whl", files)
    files = dict.fromkeys(FLASHINFER_FILES, "__version__ = 'stub'\n")
    _write(folder / f"flashinfer_python-{lock[FLASHINFER].version}-py3-none-any.whl", files)
    return folder


def write_modules(folder: Path, file: str = "", member: str = "") -> Path:
    """An archive of compiled modules; ``member`` is one that should not be in it."""
    folder.mkdir()
    version = pinned()[FLASHINFER].version
    with tarfile.open(folder / (file or f"flashinfer-{version}-sm90a.tar.xz"), "w:xz") as archive:
        for name in [*(f"aot/{one}" for one in MODULES), *([member] if member else [])]:
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"\x7fELF"))
    return folder


def _write(file: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
