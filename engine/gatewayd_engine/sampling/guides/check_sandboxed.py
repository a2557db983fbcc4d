"""Entry point of ``check_process`` in a sandbox, as grammars are untrusted.

Run by ``python -m`` with the checkpoint's folder; has no access to the daemon's files and sockets.
Nothing that starts a thread may be imported before: the sandbox only applies to threads that start
later. Where the system lacks a mechanism, the process serves anyway and reports it; where applying
one fails, it refuses to serve.
"""

from __future__ import annotations

import sys

from gatewayd_engine.process.sandbox import SandboxFailed, SandboxUnavailable, confine, readable


def main() -> int:
    """Enter the sandbox, then serve until standard input ends."""
    note = failure = ""
    try:
        confine(readable(sys.argv[1]))
    except SandboxUnavailable as error:
        note = str(error)
    except (SandboxFailed, OSError) as error:
        failure = str(error)
    from gatewayd_engine.sampling.guides import check_process

    return check_process.refuse(failure) if failure else check_process.main(note)


if __name__ == "__main__":
    sys.exit(main())
