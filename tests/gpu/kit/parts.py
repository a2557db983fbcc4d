"""The part of FlashInfer that attention needs, and modules of it that are compiled already."""

from __future__ import annotations

import fnmatch
import shutil
import tarfile
import zipfile
from pathlib import Path

from tests.gpu.kit.lock import names
from tests.gpu.kit.wheels import KitError

HERE = Path(__file__).parent
PYTHON = HERE / "flashinfer.txt"
SOURCES = HERE / "sources.txt"
COMPILED = ("cascade", "xqa_*", "tinygemm2", "mm_bf16_cublaslt", "batch_prefill_*")
"""Modules that travel, by the names that FlashInfer gives them."""


def is_kept(name: str, python: frozenset[str], sources: tuple[str, ...]) -> bool:
    """Whether a file of the wheel travels."""
    folder, _, rest = name.partition("/")
    if folder.endswith(".dist-info"):
        return rest in ("METADATA", "top_level.txt")
    if rest in python:
        return True
    inside = rest.removeprefix("data/")
    if inside == rest:
        return False
    return any(
        inside.startswith(one.removesuffix("**"))
        if one.endswith("**")
        else "/" not in inside.removeprefix("csrc/") and fnmatch.fnmatchcase(inside, one)
        for one in sources
    )


def unpack(wheel: Path, site: Path) -> None:
    """Put what is kept of FlashInfer's wheel into a folder."""
    python, sources = frozenset(names(PYTHON)), tuple(names(SOURCES))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site, [n for n in archive.namelist() if is_kept(n, python, sources)])


def add_compiled(folder: Path, version: str, site: Path) -> list[str]:
    """Add modules that are compiled already; FlashInfer loads them as its own.

    Args:
        folder: with archives ``flashinfer-VERSION-*.tar.xz``, in each a folder ``aot``.
        version: of FlashInfer.
        site: where it was unpacked.

    Returns:
        Names of the modules. The others are compiled at first use, 20 to 150 s each.

    Raises:
        KitError: an archive has something else in it.
    """
    there = site / "flashinfer/data/aot"
    for file in sorted(folder.glob(f"flashinfer-{version}-*.tar.xz")):
        with tarfile.open(file) as archive:
            for member in archive:
                above, module, name, *more = [*member.name.split("/"), "", ""]
                is_plain = member.isdir() or member.isfile()
                if above != "aot" or ".." in (module, name) or any(more) or not is_plain:
                    raise KitError(f"{file} has {member.name}, which is no compiled module")
                if name and any(fnmatch.fnmatchcase(module, one) for one in COMPILED):
                    (there / module).mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(member)
                    if content is not None:
                        with content, (there / module / name).open("wb") as out:
                            shutil.copyfileobj(content, out)
    return sorted(path.name for path in there.iterdir()) if there.is_dir() else []
