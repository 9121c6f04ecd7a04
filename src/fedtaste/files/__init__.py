"""Files that survive a crash: atomic replacement and locks."""
