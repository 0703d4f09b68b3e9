"""What happened: the facts that agents state, how they are written down, and where they go."""
