"""The plugin contract: hooks, the Protocols of every kind, the loader and the conformance kit.

Import from its modules. Nothing here imports torch, numpy or the web at its top.
"""
