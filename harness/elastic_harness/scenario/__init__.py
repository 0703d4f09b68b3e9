"""Scenarios: what to run, what to break when, and what must hold."""
