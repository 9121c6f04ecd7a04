"""Evaluation: scores, ranks, metrics with intervals, protocols, and the test whether a protocol leaks."""
