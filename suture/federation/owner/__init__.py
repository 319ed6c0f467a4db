"""An owner's part of a run between owners."""
