"""The coordinator's part of a run between owners."""
