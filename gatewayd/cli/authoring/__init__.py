"""Tools for plugin authors: project scaffolding, tests, health checks, reference pages.

Nothing here is imported by the daemon.
"""
