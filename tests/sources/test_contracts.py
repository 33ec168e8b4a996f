"""Every format has a test class that inherits the contract of sources."""

import importlib
import inspect

import pytest

from shardkit.sources.formats import FORMATS
from shardkit.testing import SourceContract
from tests.support.files.format_contract import FormatContract
from tests.support.paths import ROOT


def contracts():
    """Yields the test classes of the contract in the folders of the formats."""
    for path in sorted((ROOT / "tests/sources").glob("*/test_contract.py")):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name, found in inspect.getmembers(module, inspect.isclass):
            if name.startswith("Test") and issubclass(found, FormatContract):
                yield found


def test_every_format_keeps_the_contract():
    assert {contract.format for contract in contracts()} == set(FORMATS)


@pytest.mark.parametrize("contract", list(contracts()), ids=lambda contract: contract.__name__)
def test_every_test_is_there_that_has_a_meaning(contract):
    tests = {name for name in dir(SourceContract) if name.startswith("test_")}
    absent = {name for name in tests if getattr(contract, name) is None}
    without_option = "drop_columns" not in FORMATS[contract.format].options
    dropped = {"test_a_dropped_column_is_the_only_one_that_is_gone"} if without_option else set()
    assert absent == dropped | set(contract.leaves_out)


def test_what_a_format_leaves_out_has_a_reason():
    left_out = {contract.format: dict(contract.leaves_out) for contract in contracts() if contract.leaves_out}
    assert sorted(left_out) == ["dataset", "idx"]
    assert all(reason for reasons in left_out.values() for reason in reasons.values())
