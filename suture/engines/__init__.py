"""Engines run a method's steps: embedded (all clients here), later between real machines."""
