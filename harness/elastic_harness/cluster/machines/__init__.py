"""Nodes on several machines: an agent on each, and a cluster that spreads nodes over them."""
