"""Generator of the schema digests in migrations/gatewayd_migrations/shape.py.

``python -m gatewayd.store.schema_digests migrations/gatewayd_migrations/shape.py`` updates them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gatewayd.store.database import connect
from gatewayd.store.schema_check import digests, tables
from gatewayd_migrations import steps

_BEGIN, _END = "SHAPE = {\n", "}\n"


def rewrite(text: str) -> str:
    """Replace the digests in the file's text by those of a fresh store.

    Raises:
        ValueError: the text has no table of digests.
    """
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not end:
        raise ValueError("there is no table of digests that begins with SHAPE = {")
    rows = "".join(f'    "{key}": "{digest}",\n' for key, digest in sorted(_made().items()))
    return head + begin + rows + end + tail


def _made() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        engine = connect(Path(folder, "fresh.db"))
        try:
            with engine.begin() as connection:
                steps.upgrade(connection)
                # SHAPE does not list tables of a new migration yet.
                return digests(connection, tables(connection))
        finally:
            engine.dispose()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(rewrite(file.read_text(encoding="utf-8")), encoding="utf-8")
