"""Faults: what can be broken, how that is proven, and how it is undone."""
