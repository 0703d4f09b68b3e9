"""Tests: see CONTRIBUTING.md for where one goes."""
