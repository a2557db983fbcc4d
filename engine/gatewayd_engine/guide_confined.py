"""``guide_check`` without the daemon's files and sockets: a grammar's text may be an attack.

``python -m gatewayd_engine.guide_confined FOLDER``, with the checkpoint's. Nothing that starts a
thread is imported before: what confines holds for those that begin later.
"""

from __future__ import annotations

import sys

from gatewayd_engine.confinement import CannotConfine, confine, readable


def main() -> int:
    """Give up what is not needed, then serve until standard input ends."""
    note = ""
    try:
        confine(readable(sys.argv[1]))
    except CannotConfine as error:
        note = str(error)
    from gatewayd_engine import guide_check

    return guide_check.main(note)


if __name__ == "__main__":
    sys.exit(main())
