"""One small class for each fault."""
