"""Tasks: what a data set is used for. Each task says what is learnt from, what chooses the round and what is measured."""
