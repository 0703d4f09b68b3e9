"""The names that a node knows: its hosts file and its own name service."""
