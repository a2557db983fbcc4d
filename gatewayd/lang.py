"""``gatewayd.lang``: the library for programs, ``gatewayd_lang``, under the daemon's name."""

from gatewayd_lang import *  # noqa: F403 - all that it exports, and nothing else
from gatewayd_lang import __all__ as __all__
