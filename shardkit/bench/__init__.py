"""How fast a dataset is read, and where the time goes."""
