"""Interpreters that wait, warm, in site initialisation, and become any program from there."""
