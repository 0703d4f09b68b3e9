"""What the harness sees of workers without changing the user's script."""
