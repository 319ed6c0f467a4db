"""Where raw datasets come from: catalogue, download, cache, readers."""
