"""Which nodes form a round, and who decides: knows nodes, never processes."""
