"""Attempts to break healgp, counted: `make trust` runs all of them and writes docs/trust.md."""
