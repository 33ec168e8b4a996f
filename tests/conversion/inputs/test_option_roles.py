"""What the roles of options say about recipes, fingerprints and appends."""

import inspect

import msgspec
import pytest

import shardkit
from shardkit.conversion import plan
from shardkit.conversion.request import ConvertRequest, RecipeOptions, fields_of, option_fields, parse_request
from shardkit.indexing.listing import IndexOptions
from shardkit.sources.base import RawFile
from shardkit.sources.options import SourceOptions


def test_the_limits_are_those_that_a_fingerprint_leaves_out():
    assert {f.path for f in fields_of("limit")} == {
        "source.include", "source.exclude", "source.labels", "max_bad", "max_row_seconds", "allow_empty",
    }  # fmt: skip
    assert plan._blank_limits("") == {"max_bad": None, "max_row_seconds": 0.0, "allow_empty": False}
    assert plan._blank_limits("source") == {"include": (), "exclude": (), "labels": None}


def test_the_recipe_holds_what_is_no_matter_of_the_run():
    # Features come from a file, and the recipe holds them otherwise.
    held = {f.path for f in option_fields() if f.option.role != "run"} - {"schema_path"}
    assert held == {f.path for f in fields_of("content", "limit", "run")}
    assert set(plan.Recipe.__struct_fields__) - set(RecipeOptions.__struct_fields__) == {
        "labels_sha256", "source_features", "splits_by_name",
    }  # fmt: skip


def test_an_option_that_is_added_changes_no_recipe_and_no_fingerprint_until_it_is_given(monkeypatch):
    new = {"seed", "table", "max_row_seconds"}
    monkeypatch.setattr(plan, "_ALWAYS_HELD", plan._ALWAYS_HELD - new)
    usual, given = plan.Recipe(), plan.Recipe(seed=7, source=SourceOptions(table="t"))
    held = plan.stored_recipe(usual)
    assert not new & {*held, *held["source"]}
    assert plan.stored_recipe(given) == held | {"seed": 7, "source": held["source"] | {"table": "t"}}
    names = {plan.fingerprint((), (), r) for r in (usual, plan.Recipe(max_row_seconds=1.0))}
    assert len(names) == 1
    assert plan.fingerprint((), (), given) not in names


def test_options_that_are_not_typed_are_the_defaults():
    flags = {f.typed_name: False for f in option_fields() if f.is_flag and f.default is False}
    assert parse_request(flags, ("a.csv",), "out") == ConvertRequest(inputs=("a.csv",), destination="out")


def test_the_option_that_names_columns_wins_over_its_flag():
    assert parse_request({"dedup_all": False, "dedup": None}).dedup is None
    assert parse_request({"dedup_all": True, "dedup": None}).dedup == ()
    assert parse_request({"dedup_all": True, "dedup": "a, b"}).dedup == ("a", "b")


@pytest.mark.parametrize("call", [shardkit.open_tfrecords, shardkit.decode_images, RawFile, IndexOptions])
def test_calls_of_python_have_the_defaults_of_the_options(call):
    options = {f.name: f.default for f in msgspec.structs.fields(SourceOptions)}
    found = {name: p.default for name, p in inspect.signature(call).parameters.items() if name.startswith("max_")}
    assert found
    assert found == {name: options[name] for name in found}
