"""What outlives the process: SQLite through SQLAlchemy, one writer, and the folder around it."""
