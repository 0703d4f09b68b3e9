"""Links between nodes that can be cut, slowed and made lossy, one direction at a time."""
