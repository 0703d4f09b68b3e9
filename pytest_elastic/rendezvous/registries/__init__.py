"""Where the leader is found: the stores of endpoints, and what a host leaves on its machine."""
