"""Figures: one file for each kind, pure functions from records to `Figure`."""
