"""Compiled code (Numba): clients of FedALS, FedRecon, FedRAP and FedTrail, and storage of private item rows."""
