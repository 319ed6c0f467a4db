"""What a person at a terminal sees: tables, learning curves, live progress. Nothing here computes a result."""
