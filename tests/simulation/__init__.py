"""Invariants under seeds, and the seeds that once failed."""
