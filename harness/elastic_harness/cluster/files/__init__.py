"""The files that a job writes: which they are, as they are written, and damage to them."""
