"""Helpers that tests and benchmarks share. Test modules import from here and never from each other."""
