"""Version of the plugin contract, independent of the version of the daemon.

A new hook or a new optional argument raises the minor number; a change that breaks plugins raises
the major one. Plugins declare what they need in ``StrategyInfo.requires_spec``.
"""

SPEC_VERSION = "1.29"
