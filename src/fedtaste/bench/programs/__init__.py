"""Programs of `fedtaste bench --peers`, one process each.

Only own_rounds.py imports fedtaste: the others also run in an environment that has nothing but numpy and the library
that they measure.
"""
