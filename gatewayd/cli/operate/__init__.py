"""Commands that act on a running daemon: pause, pin, swap, explain, and the like."""
