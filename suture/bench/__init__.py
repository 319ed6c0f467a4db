"""The research bench: many runs carried out side by side."""
