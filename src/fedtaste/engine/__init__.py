"""The round loop, its backends, and what survives a crash."""
