"""Commands that operate a running daemon, such as pause, pin, swap and explain."""
