"""A test's body on several ranks: processes forked from a server that has torch imported."""
