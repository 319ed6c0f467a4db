"""NVIDIA FLARE as what carries our bytes: the only room that knows it."""
