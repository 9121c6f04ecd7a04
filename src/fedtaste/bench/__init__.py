"""`fedtaste bench`: CPU time of one round for every backend."""
