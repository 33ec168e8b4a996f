"""Numbers with leading zeros that no sample shows, as `shardkit convert` and `inspect --recipe` treat them."""

import pytest

from shardkit.dataset.open import open_dataset

pytestmark = pytest.mark.full


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "a.csv"
    # The zeros stand behind the sample.
    path.write_text("a,b\n" + "123,y\n" * 300_000 + "00123,y\n")
    return path


def test_they_are_no_integers_unless_a_schema_says_so(run, table, tmp_path):
    code, _, err = run("convert", table, tmp_path / "out")
    assert code == 0
    assert "column 'a' is string, and not int64 as in the first rows, because of '00123' in a.csv, line 300002" in err
    schema = tmp_path / "schema.toml"
    schema.write_text('[features]\na = "int64"\n')
    assert run("convert", table, tmp_path / "out", "--schema", schema, "--overwrite")[0] == 0
    dataset = open_dataset(str(tmp_path / "out"))
    assert dataset.manifest.features[0].dtype == "int64"
    assert dataset.manifest.splits[0].num_examples == 300_001
    code, recipe, _ = run("inspect", tmp_path / "out", "--recipe")
    assert "leading_zeros = true" in recipe
    (tmp_path / "recipe.toml").write_text(recipe)
    assert run("convert", table, tmp_path / "again", "--recipe", tmp_path / "recipe.toml")[0] == 0
    assert open_dataset(str(tmp_path / "again")).manifest.fingerprint == dataset.manifest.fingerprint


def test_a_recipe_that_repeats_inferred_types_allows_none(run, table, tmp_path):
    assert run("convert", table, tmp_path / "out", "--on-bad-record", "skip")[0] == 0
    recipe = run("inspect", tmp_path / "out", "--recipe")[1]
    assert "leading_zeros" not in recipe
    (tmp_path / "recipe.toml").write_text(recipe)
    assert run("convert", table, tmp_path / "again", "--recipe", tmp_path / "recipe.toml")[0] == 0
    first, second = (open_dataset(str(tmp_path / name)).manifest for name in ("out", "again"))
    assert first.fingerprint == second.fingerprint
    assert second.splits[0].num_examples == 300_001
    schema = tmp_path / "schema.json"
    schema.write_text('{"features": {"a": {"dtype": "int64", "leading_zeros": false}}}')
    assert run("convert", table, tmp_path / "third", "--schema", schema)[0] == 3
