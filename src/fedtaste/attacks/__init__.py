"""Privacy attacks on uploads and releases: recovery of item lists and ratings, and membership inference."""
