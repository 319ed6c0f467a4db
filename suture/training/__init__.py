"""Local training of K clients at once."""
