"""Pluggy markers: ``hookspec`` for the contract, ``hookimpl`` for plugins."""

import pluggy

PROJECT = "gatewayd"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
