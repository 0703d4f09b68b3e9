"""Unit tests of scenarios: plain values in, plain values out."""
