"""The plugin seen from outside, with pytester."""
