"""Types of all rows: those that the first rows hold are not looked at one by one, and the types are the same."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import ShardkitError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.json import array_source, lines_source
from shardkit.sources.json.type_sample import infer_features
from tests.support.examples import draws

NUMBERS = st.sampled_from([0, 1, -7, 2**24 + 1, 2**53 + 1, 2**63, -(2**63), 2**64, 0.5, 0.1, 1e300, -0.0])
SINGLE = st.one_of(NUMBERS, st.none(), st.booleans(), st.sampled_from(["a", "", "1"]))
VALUES = st.one_of(SINGLE, st.lists(SINGLE, max_size=3), st.lists(st.lists(NUMBERS, max_size=2), max_size=2))
ROWS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.one_of(VALUES, st.dictionaries(st.sampled_from("xy"), VALUES))),
    min_size=1,
    max_size=12,
)


def outcome(infer):
    try:
        return infer().features
    except ShardkitError as error:
        return type(error), error.what


@pytest.mark.parametrize("source", [lines_source, array_source])
@pytest.mark.parametrize("tolerates", [False, True])
def test_types_are_those_of_looking_at_every_row(tmp_path_factory, source, tolerates):
    path = tmp_path_factory.mktemp("wider") / "a.json"

    @settings(max_examples=draws(150), deadline=None)
    @given(ROWS, st.integers(1, 3))
    def check(rows, num_first):
        lines = list(map(json.dumps, rows))
        path.write_text("\n".join(lines) if source is lines_source else f"[{', '.join(lines)}]")
        files = list_inputs([str(path)]).files
        options = SourceOptions(tolerates_bad_rows=tolerates)
        placed = [(f"row {number}", row) for number, row in enumerate(rows)]

        def infer(wider_rows):
            first = json.loads(json.dumps(placed[:num_first]))
            return infer_features(files, lambda file: [[tuple(row) for row in first]], options, wider_rows=wider_rows)

        every = outcome(lambda: infer(lambda features: [placed]))
        assert outcome(lambda: infer(partial(source._wider_rows, files, options))) == every

    check()
