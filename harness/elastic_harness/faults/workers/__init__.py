"""Faults of single processes: ended, frozen, stalled, short of descriptors."""
