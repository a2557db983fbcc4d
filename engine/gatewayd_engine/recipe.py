"""``python -m gatewayd_engine.recipe``: the former name of ``gatewayd_engine.offline.train``."""

from gatewayd_engine.offline.train.__main__ import main

if __name__ == "__main__":
    main()
