"""``python -m gatewayd`` is the command ``gatewayd``."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The working folder, which ``-m`` has put first: it may be a checkpoint's, with a module
        # of the name of one of ours.
        del sys.path[0]
    from gatewayd.cli import main

    main()
