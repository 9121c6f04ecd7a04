"""tacit: personalised federated recommendation. Public names, in the order of the data flow."""

__version__ = "0.1.0"
