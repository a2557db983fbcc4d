"""``make gpu-kit``: pack what a GPU machine without network lacks into ``.gpu``, ignored by git.

    python -m tests.gpu.kit.pack [--out FOLDER] [--wheels FOLDER]

With ``--wheels`` nothing is fetched: the folder has all wheels.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.gpu.kit import parts, wheels
from tests.gpu.kit.lock import FLASHINFER, LOCKS, ROOT, names, pinned
from tests.gpu.kit.travel import travelling
from tests.gpu.kit.wheels import KitError

ARCHIVE = "site.tar.xz"
HERE = Path(__file__).parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gatewayd-gpu"


def pack(out: Path, have: Path | None, compiled: Path, more: str, preset: int = 9) -> list[str]:
    """Make the kit.

    Args:
        out: the kit's folder.
        have: a folder with all wheels; None fetches them.
        compiled: folder of FlashInfer's compiled modules, which may be missing.
        more: names of packages besides those of ``packages.txt``.
        preset: of xz.

    Returns:
        Names of the compiled modules that travel.

    Raises:
        KitError: something is missing.
    """
    lock, wanted = pinned(LOCKS), names(HERE / "packages.txt", more)
    if unknown := [name for name in (*wanted, FLASHINFER) if name not in lock]:
        raise KitError(f"etc/lock does not pin {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as made:
        folder, site = Path(made, "wheels"), Path(made, "site")
        if have is None:
            folder.mkdir()
            fetched = [lock[name] for name in (*wanted, FLASHINFER)]
            wheels.fetch(fetched, folder, [p for p in (Path(sys.prefix, "wheels"),) if p.is_dir()])
        else:
            folder = have
        for name in wanted:
            wheels.unpack(wheels.wheel_of(name, folder), site)
        wheels.trim(site)
        parts.unpack(wheels.wheel_of(FLASHINFER, folder), site)
        modules = parts.add_compiled(compiled, lock[FLASHINFER].version, site)
        out.mkdir(parents=True, exist_ok=True)
        _archive(site, out / ARCHIVE, preset)
    return modules


def _archive(site: Path, file: Path, preset: int) -> None:
    """One solid archive: the same bytes for the same files."""

    def plain(one: tarfile.TarInfo) -> tarfile.TarInfo:
        one.uid = one.gid = one.mtime = 0
        one.uname = one.gname = ""
        return one

    part = file.with_suffix(".part")
    with (
        lzma.open(part, "wb", preset=preset | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(site.rglob("*")):
            archive.add(path, str(path.relative_to(site)), recursive=False, filter=plain)
    part.rename(file)


def main() -> int:
    """Pack, and say what travels; 1 if that is too much or something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--wheels", type=Path)
    given = parser.parse_args()
    compiled = Path(os.environ.get("GPU_AOT_FOLDER") or _CACHE / "aot").expanduser()
    try:
        modules = pack(given.out, given.wheels, compiled, os.environ.get("GPU_MORE", ""))
    except KitError as error:
        print(error, file=sys.stderr)
        return 1
    if modules:
        print(f"compiled modules: {len(modules)}, from {compiled}")
    else:
        print(f"no compiled modules in {compiled} (GPU_AOT_FOLDER): compiled at first use")
    travel = travelling(ROOT, given.out)
    print(travel)
    if not travel.fits:
        print("too much to travel", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
