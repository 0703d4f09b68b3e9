"""Unit tests of faults, with a world made of plain values."""
