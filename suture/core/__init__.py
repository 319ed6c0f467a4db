"""The small vocabulary everything is written in."""
