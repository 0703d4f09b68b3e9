"""Faults of links, names, connections, proxies and stores."""
