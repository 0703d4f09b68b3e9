"""Limits of processor, memory and processes: control groups, and signals where there are none."""
