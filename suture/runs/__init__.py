"""One run: planned, prepared, carried out, judged and kept."""
