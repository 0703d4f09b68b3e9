"""The real world of one run: nodes, launchers, links, proxies, and what is watched there."""
