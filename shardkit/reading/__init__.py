"""Reading a dataset: the order of an epoch, batches of columns, random access."""
