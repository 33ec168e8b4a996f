"""TFRecords that others wrote, indexed where they lie: stock TensorFlow is the judge of every example."""

import shutil
from collections import Counter

import numpy as np
import pytest

import shardkit
from shardkit.errors import BadInputError, UsageError
from shardkit.reading.batch import Ragged
from shardkit.verify.shards import verify_dataset
from tests.support.campaign import in_campaign
from tests.support.files.index_makers import contents, index
from tests.support.paths import DATA

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not beside the checkout"),
]

# Folder, glob, examples of each split.
ADOPTED = {
    "raccoons": ("raccoon-detection", "", {"test": 40}),
    "taxi of TFX": ("chicago-taxi-4formats/csv_example_gen", "", {"train": 12_368, "eval": 5_091}),
    "taxi from outside": ("chicago-taxi-4formats/external/tfrecord", "", {"train": 15_000}),
    "digits of BigDL": ("tfrecord-others/bigdl-mnist", "", {"train": 20, "test": 20}),
    "penguins of TFX": ("tfrecord-others/tfx/penguin", "", {"train": 234, "eval": 100}),
    "examples of torchdata": ("tfrecord-others/pytorch-data/tfrecord", "example.*", {"train": 4}),
    "toys of Yggdrasil": ("tfrecord-others/yggdrasil", "toy.nocompress*", {"train": 4}),
    "toys of Yggdrasil in gzip": ("tfrecord-others/yggdrasil", "toy.tfe*", {"train": 4}),
    "sentences of Yggdrasil": ("tfrecord-others/yggdrasil", "sentences*", {"train": 2}),
}

LARGE = ("taxi of TFX", "taxi from outside")


def tensorflow_examples(paths, compression):
    """Yields every example as TensorFlow parses it: values by name, without those that hold none."""
    import tensorflow as tf

    for path in paths:
        for record in tf.data.TFRecordDataset(str(path), compression).as_numpy_iterator():
            found = {}
            for name, feature in tf.train.Example.FromString(record).features.feature.items():
                if (kind := feature.WhichOneof("kind")) is not None:
                    found[name] = list(getattr(feature, kind).value)
            yield found


def stored(value):
    """Returns a value that shardkit gives as `tf.train.Example` lists it."""
    values = value.tolist() if isinstance(value, np.ndarray) else [value]
    return [v.encode() if isinstance(v, str) else getattr(v, "item", lambda v=v: v)() for v in values]


def row_of(batch, row):
    values = {}
    for name in batch:
        if name not in batch.present or batch.present[name][row]:
            column = batch[name]
            values[name] = stored(column.row(row) if isinstance(column, Ragged) else column[row])
    return values


def key(example):
    return repr(sorted(example.items()))


@pytest.mark.full
@pytest.mark.parametrize("name", [*(name for name in ADOPTED if name not in LARGE), *in_campaign(*LARGE)])
def test_every_example_is_what_tensorflow_parses(tmp_path, name):
    folder, glob, num_examples = ADOPTED[name]
    if not (DATA / folder).is_dir():
        pytest.skip("this data set is not beside the checkout")
    copy = shutil.copytree(DATA / folder, tmp_path / "copy", copy_function=shutil.copyfile)
    tmp_path.joinpath("copy").chmod(0o755)
    before = contents(copy)
    made = index(copy / glob if glob else copy)
    assert {s.name: s.num_examples for s in made.dataset.manifest.splits} == num_examples
    assert verify_dataset(made.dataset).is_whole
    assert contents(copy) == before
    found = shardkit.open(str(copy))
    compression = "GZIP" if found.manifest.compression == "gzip" else ""
    for split_name, split in found.items():
        paths = [made.dataset.shard_url(s) for s in made.dataset.split_shards(split_name)]
        expected = [key(e) for e in tensorflow_examples(paths, compression)]
        assert len(expected) == num_examples[split_name]
        # One example of a gzip block at a time would inflate it each time.
        stored_order = split[:]
        assert [key(row_of(stored_order, row)) for row in range(len(split))] == expected
        assert (
            key({n: stored(v) for n, v in split[len(split) // 2].items() if v is not None})
            == (expected[len(split) // 2])
        )
        seen = Counter()
        for worker in range(3):
            reader = split.batches(
                global_batch_size=96, num_workers=3, worker_index=worker, remainder="pad", decodes_text=False
            )
            for batch in reader:
                rows = range(32) if batch.mask is None else np.flatnonzero(batch.mask).tolist()
                seen.update(key(row_of(batch, row)) for row in rows)
        assert seen == Counter(expected)
    opened = shardkit.open_tfrecords(str(copy / glob if glob else copy))
    assert len(opened) == sum(num_examples.values())


@pytest.mark.parametrize(
    ("folder", "kind", "why"),
    [
        ("tfrecord-others/tfx/tfevents", BadInputError, "neither an Example nor a SequenceExample"),
        ("tfrecord-others/tfx/tfrecord_sequence", UsageError, "shardkit convert"),
        ("chicago-taxi-4formats/external/tfrecord_sequence", UsageError, "shardkit convert"),
        ("tfrecord-others/yggdrasil", UsageError, "compressed in different ways"),
    ],
)
def test_what_is_no_dataset_of_examples_is_refused(folder, kind, why):
    if not (DATA / folder).is_dir():
        pytest.skip("this data set is not beside the checkout")
    with pytest.raises(kind, match=why):
        shardkit.open_tfrecords(str(DATA / folder))
