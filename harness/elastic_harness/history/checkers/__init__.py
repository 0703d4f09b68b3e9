"""The checkers: safety (the default invariants), liveness, training."""
