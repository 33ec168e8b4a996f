"""Rows that go through a pipeline of a user into a dataset, and come out of it again."""

from __future__ import annotations

import os
import re
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from beam_pipelines.engines.prism_program import find_program
from beam_pipelines.transforms import ReadShards, WriteShards, _CommitParts, _ranges, _WritePart
from shardkit.errors import UsageError
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

LOCAL = ["--runner=BundleBasedDirectRunner"]
ROWS = [
    {"id": i, "x": i / 4, "word": f"word{i % 7}", "tags": list(range(i % 3)), "maybe": None if i % 5 == 0 else i > 50}
    for i in range(1000)
]


@pytest.fixture(params=["local", "prism"])
def options(request):
    if request.param == "local":
        return LOCAL
    if (program := find_program(os.environ)) is None:
        pytest.skip("no program of Prism is installed")
    return ["--runner=PrismRunner", f"--prism_location={program}", "--environment_type=LOOPBACK"]


def write(options, elements, destination, **more):
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        committed = pipeline | beam.Create(elements) | WriteShards(str(destination), **more)
        assert_that(committed, equal_to([str(destination)]))


def check(options, destination, rows, *splits):
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        found = [pipeline | f"Read {split}" >> ReadShards(str(destination), split) for split in splits]
        dicts = found | beam.Flatten() | beam.Map(lambda row: row._asdict())
        assert_that(dicts, equal_to(rows))


def test_rows_in_are_rows_out(tmp_path, options):
    write(options, ROWS, tmp_path / "out", split={"train": 0.8, "test": 0.2}, num_shards=3)
    check(options, tmp_path / "out", ROWS, "train", "test")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["data", "manifests"]


FORMS = {
    "beam rows": [beam.Row(**row) for row in ROWS],
    "batches": pa.Table.from_pylist(ROWS).to_batches(max_chunksize=64),
    "tables": [pa.Table.from_pylist(ROWS), pa.Table.from_pylist(ROWS[:0], pa.Table.from_pylist(ROWS).schema)],
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_may_have_other_forms(tmp_path, form):
    write(LOCAL, FORMS[form], tmp_path / "out", num_shards=2)
    check(LOCAL, tmp_path / "out", ROWS, "train")


def test_examples_have_a_schema(tmp_path):
    write(LOCAL, ROWS, tmp_path / "out")
    with beam.Pipeline(options=PipelineOptions(LOCAL)) as pipeline:
        rows = pipeline | ReadShards(str(tmp_path / "out"))
        words = rows | beam.GroupBy("word").aggregate_field("id", sum, "total") | beam.Map(lambda row: row.total)
        assert_that(words, equal_to([sum(r["id"] for r in ROWS if r["word"] == f"word{i}") for i in range(7)]))


def test_parts_of_a_bundle_that_failed_are_no_rows(tmp_path):
    transform = WriteShards(str(tmp_path / "out"), spool=str(tmp_path / "spool"))
    bundles = []
    for rows in (ROWS[:10], ROWS[:10], ROWS[10:]):
        step = _WritePart(transform._target)
        step.start_bundle()
        for row in rows:
            step.process(row)
        bundles.append([found.value for found in step.finish_bundle()])
    assert len(list(tmp_path.glob("spool/*/*.done"))) == 3
    # The first of them was never heard of again.
    commit = _CommitParts(transform._target)
    assert list(commit.process(0, [*bundles[1], *bundles[2]])) == [str(tmp_path / "out")]
    check(LOCAL, tmp_path / "out", ROWS, "train")
    assert not (tmp_path / "spool").exists()
    assert list(commit.process(0, [*bundles[1], *bundles[2]])) == [str(tmp_path / "out")], "it was done before"


def test_parts_that_are_not_here_are_missed(tmp_path):
    transform = WriteShards(str(tmp_path / "out"))
    with pytest.raises(UsageError, match="Name a spool that all workers share"):
        list(_CommitParts(transform._target).process(0, [1]))
    with pytest.raises(UsageError, match="there are no rows"):
        list(_CommitParts(transform._target).process(0, []))


def test_a_wrong_option_is_refused_when_the_pipeline_is_made(tmp_path):
    with pytest.raises(UsageError, match="num_shard"):
        WriteShards(str(tmp_path / "out"), num_shard=3)


def test_ranges_are_those_of_blocks():
    assert list(_ranges([10_000, 10_000, 1, 20_000, 5])) == [(0, 20_000), (20_000, 40_001), (40_001, 40_006)]
    assert list(_ranges([])) == []


def test_the_pipeline_of_the_readme_runs_in_beams_yaml(tmp_path, monkeypatch):
    for package in ("jinja2", "jsonschema", "docstring_parser"):
        pytest.importorskip(package)
    from apache_beam.yaml.main import run

    block = re.search(r"```yaml\n(.*?)```", (ROOT / "beam_pipelines/README.md").read_text(), re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    run(["--yaml_pipeline", block, *LOCAL])
    check(LOCAL, tmp_path / "out/from-yaml", [{"x": 1, "word": "one"}, {"x": 2, "word": "two"}], "train")
    providers = block[block.index("providers:") :]
    chain = "    - type: ReadFromShardkit\n      config: {dataset: out/from-yaml}\n"
    chain += "    - type: MapToFields\n      config: {language: python, fields: {word: word}}\n"
    chain += "    - type: WriteToText\n      config: {path: words}\n"
    run(["--yaml_pipeline", f"pipeline:\n  type: chain\n  transforms:\n{chain}{providers}", *LOCAL])
    words = "".join(path.read_text() for path in Path().glob("words*"))
    assert sorted(words.split()) == ["one", "two"]
