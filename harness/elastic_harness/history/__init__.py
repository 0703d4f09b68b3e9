"""What happened in one run, and the checkers that judge it."""
