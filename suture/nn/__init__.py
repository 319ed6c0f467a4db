"""Networks whose layers carry a client axis."""
