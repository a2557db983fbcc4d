"""What a pytest that a test starts need not import: it takes longer than most of what it runs."""

from __future__ import annotations

NEEDLESS = (
    "schemathesis",
    "xdist",
    "xdist.looponfail",
    "asyncio",
    "anyio",
    "rerunfailures",
    "syrupy",
)
QUICKLY = {"PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in NEEDLESS)}
"""Environment of one whose projects use none of these plugins."""
