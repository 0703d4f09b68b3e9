"""Real clusters, real launchers, real faults."""
