"""Changes rows."""

import pyarrow.compute as pc


def denser(batch):
    """Returns the rows with the people a square kilometre."""
    return batch.append_column("density", pc.divide(batch.column("people"), batch.column("area")))
