"""The launcher's own machines in virtual time, under seeded faults."""
