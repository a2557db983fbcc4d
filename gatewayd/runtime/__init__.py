"""What this process has of its machine: processors, malloc, the garbage collector."""
