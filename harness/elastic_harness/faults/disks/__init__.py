"""Faults of disks and of the files that a job has written."""
