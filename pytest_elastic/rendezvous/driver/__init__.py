"""Performs what a node's machines decide, over sockets and timers."""
