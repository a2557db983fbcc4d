"""What operators change while the daemon serves; it counts until the file says something else."""
