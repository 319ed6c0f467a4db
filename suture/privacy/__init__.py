"""What leaves a client: recorded, counted, and (later) bounded."""
