"""A Toxiproxy server and client of our own, and which connections of a job go through proxies."""
