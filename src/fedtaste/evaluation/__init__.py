"""How good, honestly: ranks, metrics of ranks, protocols, and whether a protocol leaks."""
