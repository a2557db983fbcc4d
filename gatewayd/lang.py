"""The ``gatewayd_lang`` library for programs, re-exported as ``gatewayd.lang``."""

from gatewayd_lang import *  # noqa: F403 - all that it exports, and nothing else
from gatewayd_lang import __all__ as __all__
