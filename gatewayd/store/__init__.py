"""Persistent store: SQLite through SQLAlchemy with a single writer, and its folder."""
