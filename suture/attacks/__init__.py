"""What a run's messages are worth to somebody curious: attacks, one file each, on recorded runs."""
