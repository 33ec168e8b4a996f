"""How fast a dataset is read, where the time goes, and how many accelerators that feeds."""
