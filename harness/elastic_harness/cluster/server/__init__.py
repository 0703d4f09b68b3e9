"""The cluster server: the process that makes nodes, its supervisor, and what it cleans up."""
