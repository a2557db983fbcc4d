"""The version of the plugin contract, apart from the version of the daemon.

A new hook or a new optional argument raises the minor number; a change that breaks a
plugin raises the major one. Plugins name what they need in ``StrategyInfo.requires_spec``.
"""

SPEC_VERSION = "1.26"
