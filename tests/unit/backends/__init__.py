"""Tests of pytest_elastic.backends, a file for each of its files."""
