"""The training processes of one node: how they start, end, log and fail."""
