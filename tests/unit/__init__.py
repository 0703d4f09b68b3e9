"""A file for each source file, with plain values."""
