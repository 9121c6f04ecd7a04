"""Tasks: what a data set is used for (ranking, ratings, clients): training, validation and test data, and metrics."""
