"""The code speaks the words of the field: names that it once had for its own ideas do not come back."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("shardkit", "beam_pipelines", "train", "examples", "tests")
FILES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))
FOLDERS = sorted({p.parent.relative_to(ROOT).as_posix() for p in FILES})

# An old word of a name -> the word that took its place.
OLD_WORDS = {
    "adopt": "index",
    "adoption": "indexing",
    "crew": "worker processes",
    "diagnosis": "doctor",
    "fitted": "cast",
    "fitting": "cast, or what is meant",
    "generations": "append",
    "handover": "exchange",
    "learner": "model bundle",
    "learners": "model bundles",
    "lookout": "watchdog",
    "membership": "assignment",
    "misfit": "odd value",
    "misfits": "odd values",
    "pictures": "images",
    "rival": "baseline",
    "seat": "worker identity",
    "seats": "worker identities",
    "sieve": "filter",
    "sift": "split good and bad",
    "sifted": "good records",
    "sight": "observation",
    "sights": "observations",
    "stock": "tf.data",
    "survey": "first pass",
    "surveyed": "first pass",
    "told": "format, message, or what is meant",
    "understand": "inspect",
    "understanding": "inspected inputs",
    "understood": "inspected inputs",
    "unfit": "bad value",
    "verdict": "crash record, or bottleneck",
}
# Words that stay in one room, where they are the usual ones.
_DOCTOR = ("shardkit/doctor/", "shardkit/cli/doctor.py")
_DOCTOR_TESTS = ("tests/doctor/", "tests/cli/test_doctor.py", "tests/storage/stores/test_doctor.py")
USUAL = {
    "verdict": (*_DOCTOR, *_DOCTOR_TESTS),
    "stock": ("tests/train/test_stock_graph.py",),
}


def words_of(name):
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def names_in(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield node.arg


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_has_an_old_word(folder):
    found = []
    for path in (ROOT / folder).glob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        found += [
            f"{place}: {name}: say {OLD_WORDS[word]}"
            for name in sorted(set(names_in(path)))
            for word in sorted(set(words_of(name)) & OLD_WORDS.keys())
            if not place.startswith(USUAL.get(word, ()))
        ]
    assert found == []


def test_no_path_has_an_old_word():
    places = [path.relative_to(ROOT).with_suffix("").as_posix() for path in FILES]
    old = {place: set(words_of(place)) & OLD_WORDS.keys() for place in places}
    assert [place for place in places if any(not f"{place}.py".startswith(USUAL.get(w, ())) for w in old[place])] == []


def test_words_are_found_in_names_of_every_style():
    assert words_of("_HANDOVER_dir") == ["handover", "dir"]
    assert words_of("SurveyedRows") == ["surveyed", "rows"]
    assert words_of("handoverURL") == ["handover", "url"]
