"""The operator's part: order a run, follow it, bring it home."""
