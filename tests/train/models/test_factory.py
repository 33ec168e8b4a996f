"""Every entry of the table of models names a module that builds it."""

from __future__ import annotations

import inspect

import pytest

from shardkit.errors import DamageError, UsageError
from train.models.factory import Builder, load_builder
from train.models.model_recipe import recorded
from train.options.model_table import BUILTIN_MODELS

pytestmark = pytest.mark.full


@pytest.mark.parametrize("model", [*BUILTIN_MODELS, "ResNet50", "my_model.py:build"])
def test_a_module_has_the_functions_of_a_builder(model) -> None:
    builder = load_builder(model)
    for name in ("make_bundle", "restore_bundle"):
        wanted = [p for p in inspect.signature(getattr(Builder, name)).parameters if p != "self"]
        assert [*inspect.signature(getattr(builder, name)).parameters] == wanted


def test_a_record_of_no_model_is_explained() -> None:
    with pytest.raises(UsageError, match="there is no model 'quux'"):
        load_builder("quux")
    with pytest.raises(DamageError, match="lacks what its model is made of"):
        recorded(None)
