"""What a person reads after a run."""
