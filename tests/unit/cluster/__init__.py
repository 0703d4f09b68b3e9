"""Unit tests of the parts of a cluster that need none."""
