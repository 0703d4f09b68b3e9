"""Scenarios: what is to happen to a job, what must hold, and the machine that sees to it.

Importing this package costs nothing; `model` and `loader` bring pydantic and YAML and are imported
only when a scenario is read.
"""
