"""``python3 tests/gpu/kit first|gpu|all``, in any folder: see ``run.py``.

A package that is installed may have a folder ``tests`` as well, and that one would be imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).resolve().parents[3]

if __name__ == "__main__":
    sys.path[0] = str(_ROOT)
    ours = ModuleType("tests")
    ours.__path__ = [str(_ROOT / "tests")]
    sys.modules["tests"] = ours
    from tests.gpu.kit.run import main

    sys.exit(main())
