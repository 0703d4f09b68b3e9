"""Faults of whole nodes: killed, powered off, added, limited, with a wrong clock."""
