"""The error family: what it says, and that it survives the way from a worker process."""

import pickle  # noqa: TID251 - what carries exceptions out of worker processes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, StorageError, UsageError, missing_extra

FAMILY = ShardkitError.__subclasses__()
PART = st.none() | st.text(min_size=1)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "it broke."),
        ({"where": "a.csv, row 7"}, "it broke in a.csv, row 7."),
        ({"why": "expected int64, got 'x'"}, "it broke: expected int64, got 'x'."),
        ({"where": "a.csv", "why": "it is cut off"}, "it broke in a.csv: it is cut off."),
        ({"state": "Nothing was written"}, "it broke. Nothing was written."),
        ({"next_step": "Is it mounted?"}, "it broke. Is it mounted?"),
        (
            {"where": "a", "why": "b.", "state": "Nothing was written.", "next_step": "Run it again!"},
            "it broke in a: b. Nothing was written. Run it again!",
        ),
    ],
)
def test_the_parts_make_sentences(parts, text):
    assert str(ShardkitError("it broke", **parts)) == text


def test_exit_codes_and_labels_tell_the_kinds_apart():
    assert sorted(kind.exit_code for kind in FAMILY) == [1, 2, 3, 4, 5, 6, 7]
    assert all(kind.code == f"SK-E{kind.exit_code}00" for kind in FAMILY)


@given(kind=st.sampled_from(FAMILY), what=st.text(min_size=1), where=PART, why=PART, state=PART, next_step=PART)
def test_an_error_crosses_a_process_border_whole(kind, what, where, why, state, next_step):
    error = kind(what, where=where, why=why, state=state, next_step=next_step)
    pickled = pickle.dumps(error)
    for copy in (pickle.loads(pickled), ShardkitError.from_dict(error.to_dict())):  # noqa: S301
        assert type(copy) is kind
        assert copy.to_dict() == error.to_dict()
        assert str(copy) == str(error)


def test_an_unknown_kind_is_still_an_error():
    error = ShardkitError.from_dict({"type": "FutureError", "what": "it broke"})
    assert (type(error), str(error)) == (ShardkitError, "it broke.")
    assert str(ShardkitError.from_dict({})) == "unknown error."


def test_a_known_state_is_kept():
    error = BadInputError("it broke", state="Half was written").with_state("Nothing was written", "Run it again")
    assert str(error) == "it broke. Half was written. Run it again."
    assert str(StorageError("it broke").with_state("Nothing was written")) == "it broke. Nothing was written."


def test_a_missing_extra_says_what_to_install():
    error = missing_extra("train", "tensorflow")
    assert isinstance(error, UsageError)
    assert str(error).endswith("Run: pip install 'shardkit[train]'.")


def test_an_error_of_another_module_crosses_as_the_one_that_it_is_of():
    class CutOffError(DamagedFileError):
        pass

    copy = ShardkitError.from_dict(CutOffError("it is cut off", where="a.bin").to_dict())
    assert type(copy) is DamagedFileError
    assert (copy.what, copy.where, copy.exit_code) == ("it is cut off", "a.bin", 3)
