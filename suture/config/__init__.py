"""From TOML files and `--set` to checked values."""
