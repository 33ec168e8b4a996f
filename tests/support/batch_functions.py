"""Functions on batches and readers that a process which is started anew can import."""


def twice(batch):
    return {**batch, "id": batch["id"] * 2}


def is_small(batch):
    return batch["id"] < 400


def ids_of(batches):
    return [batch["id"].tolist() for batch in batches]


def num_examples(splits):
    return {name: len(split) for name, split in splits.items() if split.take(range(7))["id"].tolist() == list(range(7))}
