"""Folders as people have them, each with the rows that a dataset of it has to hold."""

from tests.support.folders.annotated import ANNOTATED
from tests.support.folders.classes import CLASSES
from tests.support.folders.found_tables import FOUND_TABLES
from tests.support.folders.known_sets import KNOWN_SETS
from tests.support.folders.pairs import PAIRS
from tests.support.folders.parts import Case
from tests.support.folders.published import PUBLISHED
from tests.support.folders.speech import SPEECH
from tests.support.folders.tables import TABLES
from tests.support.folders.texts import TEXTS

CASES: tuple[Case, ...] = (
    *CLASSES,
    *ANNOTATED,
    *SPEECH,
    *TABLES,
    *TEXTS,
    *PUBLISHED,
    *FOUND_TABLES,
    *PAIRS,
    *KNOWN_SETS,
)
