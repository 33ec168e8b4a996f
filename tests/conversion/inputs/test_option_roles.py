"""What the roles of options say about fingerprints and appends."""

import msgspec

from shardkit.conversion import plan
from shardkit.conversion.convert_options import ConvertOptions
from shardkit.conversion.request import fields_of, option_fields


def test_the_limits_are_those_that_a_fingerprint_leaves_out():
    assert {f.path for f in fields_of("limit")} == {
        "source.include", "source.exclude", "source.labels", "max_bad", "max_row_seconds", "allow_empty",
    }  # fmt: skip
    assert plan._blank_limits("") == {"max_bad": None, "max_row_seconds": 0.0, "allow_empty": False}
    assert plan._blank_limits("source") == {"include": (), "exclude": (), "labels": None}


def test_defaults_are_those_of_the_structs_that_hold_the_values():
    options = ConvertOptions(inputs=(), destination="")
    held = {"": options, "source": options.source, "features": options}
    for field in option_fields():
        holder = held.get(field.option.part)
        if field.name in getattr(holder, "__struct_fields__", ()):
            assert getattr(holder, field.name) == field.default, field.name
    in_recipe = {f.stored_name for f in option_fields() if f.is_in_recipe and not f.option.part}
    assert in_recipe == set(plan.Recipe.__struct_fields__) & set(msgspec.structs.asdict(options)) - {
        "source",
        "transforms",
    }
