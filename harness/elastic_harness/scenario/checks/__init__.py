"""What can be known to be wrong with a scenario before it runs."""
