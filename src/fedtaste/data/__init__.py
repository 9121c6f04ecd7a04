"""Data sets: download, read, generate, describe and split them, and draw training examples from them."""
