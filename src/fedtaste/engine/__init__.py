"""The round loop, its backends (loop, vmap, kernel), the store of private parameters, and checkpoints."""
