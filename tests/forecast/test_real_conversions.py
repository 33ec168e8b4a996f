"""What the forecast says of real inputs is what their conversion does: parts, groups, shards, files, bytes."""

import io
import json
import random

import pytest
from click.testing import CliRunner
from PIL import Image

from shardkit.cli.plan import command
from shardkit.conversion.extract.extract import load_extracted
from shardkit.conversion.layout_math import write_units
from shardkit.conversion.option_forms import SplitShare
from shardkit.conversion.plan import save_plan
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.shards.layout import plan_layout
from shardkit.conversion.work_folder import work_folder
from shardkit.dataset.open import open_dataset
from shardkit.forecast.estimate import forecast
from shardkit.forecast.measure import measure_inputs
from shardkit.forecast.values import Setting
from shardkit.units import MiB

pytestmark = pytest.mark.full

NUM_ROWS = 120_000
# Of a sample of three places: rows are alike all over, words are not.
BOUND = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with a large CSV file and several small ones."""
    folder = tmp_path_factory.mktemp("rows")
    rng = random.Random(0)
    words = [f"word{rng.randrange(10**6)}" for _ in range(3000)]

    def rows(first, stop):
        return "".join(
            f"{i},{rng.random():.6f},{rng.choice(words)},{' '.join(rng.choices(words, k=12))}\n"
            for i in range(first, stop)
        )

    (folder / "large.csv").write_text("id,x,word,text\n" + rows(0, NUM_ROWS - 3000))
    for part in range(30):
        first = NUM_ROWS - 3000 + 100 * part
        (folder / f"small-{part:02d}.csv").write_text("id,x,word,text\n" + rows(first, first + 100))
    return folder


SHAPES = [
    {"shard_bytes": MiB},
    {"shard_bytes": 512 * 1024, "compression": "none"},
    {"num_shards": 7, "splits": (SplitShare(name="train", fraction=0.8), SplitShare(name="test", fraction=0.2))},
    {"shard_bytes": 2 * MiB, "shuffle": False},
]


@pytest.mark.parametrize("shape", SHAPES, ids=["gzip", "plain", "splits", "in order"])
def test_a_conversion_is_as_it_was_forecast(folder, tmp_path, shape):
    from shardkit.conversion.run.local import run_local

    options = ConvertRequest(inputs=(str(folder),), destination=str(tmp_path / "out"), **shape)
    workload = measure_inputs(options)
    kept = {name: shape[name] for name in ("shard_bytes", "num_shards", "compression", "shuffle") if name in shape}
    estimated = forecast(workload, Setting(num_workers=2, **kept))
    plan = prepare(options).plan
    with work_folder(plan):
        run_local(save_plan(plan), 2, pytest.fail)
        layout = plan_layout(plan, load_extracted(plan))
        runs = list(plan.work_path("spool").glob("*.run"))
        spooled = sum(run.stat().st_size for run in runs)
    dataset = open_dataset(plan.destination)
    splits = dataset.manifest.splits

    assert estimated.num_input_splits == len(plan.input_splits)
    assert estimated.num_runs == len(runs)
    assert sum(s.num_examples for s in estimated.splits) == pytest.approx(NUM_ROWS, rel=BOUND)
    for expected, split, laid_out in zip(estimated.splits, splits, layout.splits, strict=True):
        # Of few groups the last is smaller than its buckets would be if they were even.
        assert expected.num_groups == pytest.approx(len(laid_out.groups), abs=1)
        assert expected.num_units == pytest.approx(len(write_units(laid_out)), abs=1)
        assert expected.num_bytes == pytest.approx(split.num_bytes, rel=2 * BOUND)
        if "num_shards" in shape:
            assert expected.num_shards == split.num_shards
        else:
            assert expected.num_shards == pytest.approx(split.num_shards, rel=2 * BOUND, abs=1)
    assert estimated.spool_bytes == pytest.approx(spooled, rel=BOUND)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and "work" not in path.parts]
    wanted = sum(s.num_shards for s in splits) * (2 if dataset.manifest.compression == "none" else 1) + 3
    assert len(files) == wanted
    assert estimated.num_put_requests == pytest.approx(wanted, rel=2 * BOUND, abs=2)


def photographs(folder):
    """Writes many files, whose names are most of the manifest."""
    for number in range(400):
        path = folder / ("circles" if number % 2 else "squares") / f"{number:04d}.png"
        path.parent.mkdir(exist_ok=True)
        sink = io.BytesIO()
        Image.new("RGB", (8, 8), (number % 256, 0, 0)).save(sink, "PNG")
        path.write_bytes(sink.getvalue())


def test_a_part_of_the_files_has_a_manifest_with_fewer_files(tmp_path):
    photographs(tmp_path)
    workload = measure_inputs(ConvertRequest(inputs=(str(tmp_path),), destination=""))
    whole, quarter = (forecast(workload, Setting(num_datasets=n)).manifest_bytes for n in (1, 4))
    assert quarter < whole / 2


def test_the_command_measures_what_it_is_given(folder):
    result = CliRunner().invoke(command, [str(folder), "--json", "--shard-size", "1MiB"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["inputs"]["num_files"] == 31
    assert document["inputs"]["num_rows"] == pytest.approx(NUM_ROWS, rel=BOUND)
    assert document["inputs"]["num_features"] == 4
    assert document["findings"] == []
    assert document["setting_that_works"] == document["setting"]
    assert document["forecast"]["num_shards"] > 3
