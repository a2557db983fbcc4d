"""``python -m gatewayd`` is the command ``gatewayd``."""

from gatewayd.cli import main

if __name__ == "__main__":
    main()
