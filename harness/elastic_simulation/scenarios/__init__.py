"""Scenarios in virtual time: a cluster of simulated nodes, whose workers train."""
