"""Recommendations outside training: the Recommender class, export to a static page, the HTTP server and its API."""
