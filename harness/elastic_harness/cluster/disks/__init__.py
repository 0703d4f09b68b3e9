"""Disks that are slow, full, read-only or failing: a file system in a process."""
