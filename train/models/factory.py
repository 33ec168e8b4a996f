"""Finds what builds the model that `--model` names."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from shardkit.dataset.open import Dataset
from shardkit.features import Features
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.model_recipe import ModelRecipe
from train.options.model_defaults import model_kind


class Builder(Protocol):
    """A module that builds one kind of model."""

    def make_bundle(self, settings: ModelSettings, dataset: Dataset, split: str, features: Features) -> ModelBundle:
        """Returns the model bundle for a dataset.

        Args:
            dataset: Open.
            split: The train split; its statistics become the model's constants.
            features: Candidates.

        Raises:
            UsageError: If the features do not suit the model, or the user's file fails.
        """
        ...

    def restore_bundle(self, settings: ModelSettings, recipe: ModelRecipe) -> ModelBundle:
        """Returns the model bundle that the recipe of a run describes, with fresh weights.

        Raises:
            UsageError: If the user's file fails.
        """
        ...


def load_builder(model: str) -> Builder:
    """Returns the module that builds a model. Raises UsageError if there is no such model."""
    module: Any = import_module(model_kind(model).module)
    return module
