"""Nodes: one interface, and the kinds of cluster that keep it."""
