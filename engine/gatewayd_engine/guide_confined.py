"""``guide_check`` sandboxed, without the daemon's files and sockets: grammars are untrusted.

``python -m gatewayd_engine.guide_confined FOLDER``, the checkpoint's folder. Nothing that starts a
thread may be imported before: the sandbox applies only to threads that start later.
"""

from __future__ import annotations

import sys

from gatewayd_engine.confinement import CannotConfine, confine, readable


def main() -> int:
    """Enter the sandbox, then serve until standard input ends."""
    note = ""
    try:
        confine(readable(sys.argv[1]))
    except CannotConfine as error:
        note = str(error)
    from gatewayd_engine import guide_check

    return guide_check.main(note)


if __name__ == "__main__":
    sys.exit(main())
