"""The tests on another kernel than this machine's: see `python -m tests.machine --help`."""
