"""Data: where it comes from, what it is, how it is split, and what is drawn from it."""
