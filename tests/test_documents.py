"""Documents name files that exist, and their links lead somewhere."""

import re

import pytest

from tests.support.paths import ROOT

TOP = ("shardkit", "beam_pipelines", "train", "tests")
READMES = sorted(p.parent.relative_to(ROOT).as_posix() for top in TOP for p in (ROOT / top).rglob("README.md"))
PAGES = [ROOT / "shardkit/ARCHITECTURE.md", ROOT / "shardkit/dataset/FORMAT.md", ROOT / ".github/CONTRIBUTING.md"]
PAGES += [ROOT / folder / "README.md" for folder in READMES]
PLACE = re.compile(r"`((?:[\w.]+/)+(?:[\w.]+\.\w+)?|\w+\.py)`")
# Starts of names in FORMAT.md that are files of a dataset or media types.
IN_A_DATASET = ("manifests/", "data/", "work/", "image/", "audio/", "application/", "test/")


def places(page):
    return [p for p in PLACE.findall(page.read_text()) if not p.startswith(IN_A_DATASET)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_places_that_a_document_names_exist(page):
    missing = [p for p in places(page) if not (ROOT / p).exists() and not (page.parent / p).exists()]
    assert missing == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_relative_links_of_a_document_work(page):
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    assert [link for link in links if link and "://" not in link and not (page.parent / link).exists()] == []


def test_places_are_found():
    assert len(places(PAGES[0])) > 30


MODULES = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in ROOT.glob("*/**/*.py")}
PACKAGES = {module.rpartition(".")[0] for module in MODULES}
# At least three parts: `train.batches` may be a split that a program calls `train`.
NAME = re.compile(r"`((?:shardkit|beam_pipelines|train)(?:\.\w+){2,})`")


def is_there(name):
    """Whether a dotted name is a module, a package, or something in a module."""
    module = name
    while module not in MODULES and module not in PACKAGES:
        module = module.rpartition(".")[0]
    rest = name.removeprefix(module).lstrip(".").split(".")[0]
    path = ROOT / module.replace(".", "/")
    path = path.with_suffix(".py") if module in MODULES else path / "__init__.py"
    return not rest or rest in path.read_text()


def test_modules_that_the_code_and_the_pages_name_exist():
    texts = [p for room in ("shardkit", "beam_pipelines", "train", "tests") for p in (ROOT / room).rglob("*.py")]
    texts += [*PAGES, ROOT / "README.md"]
    named = {(path.name, name) for path in texts for name in NAME.findall(path.read_text())}
    assert len(named) > 10
    assert sorted(pair for pair in named if not is_there(pair[1])) == []


# Words of sentences that a reader has to solve like riddles.
RIDDLES = re.compile(r"\b(whoever|nobody|(is|are) told)\b", re.IGNORECASE)


@pytest.mark.full
def test_the_texts_of_the_product_are_plain():
    files = [p for room in ("shardkit", "beam_pipelines", "train") for p in (ROOT / room).rglob("*")]
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path.suffix in (".py", ".cpp", ".h", ".md")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
    ]
    assert len(lines) > 50_000
    assert [line for line in lines if RIDDLES.search(line)] == []
