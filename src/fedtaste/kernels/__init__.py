"""Compiled code (Numba) for the inner loops of methods and stores; each kernel has a readable torch twin."""
