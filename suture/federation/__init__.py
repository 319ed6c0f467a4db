"""Runs between real owners: what they agree on, what each of them allows, and what it writes down."""
