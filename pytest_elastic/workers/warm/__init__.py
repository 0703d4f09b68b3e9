"""What makes a warm worker one that cannot be told from a fresh interpreter."""
