"""The table of all targets."""

from __future__ import annotations

import importlib
import pkgutil

from PIL import Image

import shardkit.sources
from tests.fuzz.guided.dataset_targets import dataset_targets
from tests.fuzz.guided.media_targets import media_targets
from tests.fuzz.guided.source_targets import source_targets
from tests.fuzz.guided.target import Target

# What is imported when it is first needed would be imported without instrumentation.
Image.init()
for _module in pkgutil.walk_packages(shardkit.sources.__path__, "shardkit.sources."):
    importlib.import_module(_module.name)


def all_targets(folder: str) -> dict[str, Target]:
    """Returns the targets by name; some write a file into the folder."""
    return {t.name: t for t in (*dataset_targets(folder), *media_targets(), *source_targets(folder))}
