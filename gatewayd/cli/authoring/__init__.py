"""For authors of plugins: new projects, their tests, their health, the reference.

Nothing here is imported by the daemon.
"""
