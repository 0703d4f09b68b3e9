"""Worker processes of one node: starting, watching, stopping, and never leaving any behind."""
