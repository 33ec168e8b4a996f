"""The rules of the house: who may import whom, how large files and functions may be, what the wheel and help hold."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from graphlib import TopologicalSorter

import pytest

from shardkit.cli import COMMANDS
from shardkit.conversion.engines import ENGINES
from tests.support.paths import ROOT

ROOMS = ("shardkit", "beam_pipelines", "train")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MAX_LINES = 400
MAX_FILES, MAX_MODULES_AT_THE_ROOT = 20, 12
MAX_FUNCTION_LINES, MAX_PARAMETERS = 50, 6
WRITTEN = {".py", ".pyi", ".cpp", ".h", ".md"}

# Files that may be longer, each with the reason.
LONGER: dict[str, str] = {}

# Functions that may be longer, each with the reason.
LONGER_FUNCTIONS: dict[str, str] = {}

# Functions that may take more parameters, each with the reason. Commands are not listed: click calls them by keyword.
MORE_PARAMETERS = {
    "shardkit/__init__.py decode_images": "public: settings by keyword",
    "shardkit/__init__.py decode_videos": "public: settings by keyword",
    "shardkit/adapters/tfdata.py load_split": "settings by keyword, as those of `Split.batches`",
    "shardkit/adapters/torch.py BatchDataset.__init__": "public: settings by keyword",
    "shardkit/sources/media/labels.py _load": "its parameters are the key of a cache",
    "shardkit/sources/text/splits.py read_blocks": "which bytes of a file, by keyword",
    "shardkit/testing/datasets.py write_dataset": "public: settings by keyword",
    "train/runs/export.py export_run": "the options of `shardkit export`, by keyword",
}

# Who may import a heavy package, even inside a function. Import contracts say who may not load one by way of others.
ALLOWED_IMPORTERS = {
    "apache_beam": ("beam_pipelines/", "shardkit/cli/"),
    "pyspark": ("shardkit/clusters/spark", "train/launchers/spark"),
    "ray": ("shardkit/clusters/ray", "beam_pipelines/engines/ray", "train/launchers/ray"),
    "dask": ("beam_pipelines/engines/dask",),
    "distributed": ("beam_pipelines/engines/dask",),
    "tensorflow": ("train/", "shardkit/adapters/", "shardkit/cli/"),
    "keras": ("train/", "shardkit/adapters/", "shardkit/cli/"),
    "tensorboard": ("train/",),
    "torch": ("shardkit/adapters/torch",),
    "jax": ("shardkit/adapters/jax",),
    "click": ("shardkit/cli/",),
    "rich": ("shardkit/cli/", "train/reporting/report.py"),
    "fsspec": ("shardkit/storage/clients.py", "shardkit/storage/hdfs.py", "shardkit/storage/hub.py"),
    "pickle": (),
}


def test_a_folder_holds_few_files():
    written = [p for top in (*ROOMS, "tests", "examples") for p in (ROOT / top).rglob("*") if p.suffix in WRITTEN]
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in written)
    assert {folder: number for folder, number in counts.items() if number > MAX_FILES} == {}
    at_the_root = [path for path in written if path.parent == ROOT / "shardkit" and path.suffix == ".py"]
    assert len(at_the_root) <= MAX_MODULES_AT_THE_ROOT


def run(*args, **settings):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=200, **settings)


def imported_names(path):
    """Returns the top-level packages of the import statements in a file, inside functions as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def modules():
    """Yields the names of all modules of the three rooms."""
    for room in ROOMS:
        yield room
        yield from (m.name for m in pkgutil.walk_packages([str(ROOT / room)], f"{room}."))


@pytest.mark.full
def test_the_import_contracts_hold():
    pytest.importorskip("importlinter")
    result = run("-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())", cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def imports():
    """Returns which modules of the three rooms each of them imports."""
    graph = pytest.importorskip("grimp").build_graph(*ROOMS, cache_dir=None)
    found = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
    # The compiled kernel is a module of the package `shardkit` itself.
    found["shardkit.encoding.kernel"] -= {"shardkit"}
    return found


def test_no_modules_import_each_other_in_a_circle(imports):
    assert len(imports) > 500
    # Raises CycleError, which names the modules.
    list(TopologicalSorter(imports).static_order())


def layers(container):
    """Returns the lines of the contract of layers of a room, or of all rooms for None."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(c["layers"] for c in contracts if "layers" in c and c.get("containers") == container)


def test_the_map_shows_the_layers():
    blocks = (ROOT / "shardkit/ARCHITECTURE.md").read_text().split("```\n")
    assert [layer.replace("shardkit.", "") for layer in layers(None)] in [block.splitlines() for block in blocks]


def test_every_room_stands_in_a_layer():
    named = {name.strip() for layer in layers(None) for name in layer.split("|")}
    rooms = {f"shardkit.{m.name}" for m in pkgutil.iter_modules([str(ROOT / "shardkit")])}
    assert rooms - named == {"shardkit.__main__", "shardkit._kernel", "shardkit._version"} & rooms


def test_formats_stand_beside_each_other(imports):
    """A folder of `sources` that no layer names is a format: it needs only what all formats share."""
    named = [name.strip() for layer in layers(["shardkit.sources"]) for name in layer.split("|")]
    shared = named[named.index("columnar") :]
    rooms = {(m, i) for m, found in imports.items() for i in found if f"{m}|{i}".count("shardkit.sources.") == 2}
    uses = {(m.split(".")[2], i.split(".")[2]) for m, i in rooms}
    formats = {room for use in uses for room in use} - set(named)
    assert {"csv", "json", "avro"} <= formats
    assert [(a, b) for a, b in sorted(uses) if a in formats and b not in (a, *shared)] == []
    assert [(a, b) for a, b in sorted(uses) if a in shared and b in formats] == []


def test_the_contracts_cover_the_rooms_that_the_wheel_holds():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tuple(settings["importlinter"]["root_packages"]) == ROOMS
    assert tuple(settings["mypy"]["packages"]) == ROOMS


@pytest.mark.full
def test_packages_are_imported_only_where_they_may_be():
    offenders = [
        (name, package)
        for path in SOURCES
        for name in [path.relative_to(ROOT).as_posix()]
        for package in imported_names(path) & ALLOWED_IMPORTERS.keys()
        if not name.startswith(ALLOWED_IMPORTERS[package])
    ]
    assert offenders == []


def test_no_pool_waits_for_a_thread_without_memory():
    # Python's own does so for ever; `shardkit.runtime.threads` has one that looks first.
    assert [path.name for path in SOURCES if "ThreadPoolExecutor" in path.read_text()] == []


def test_no_engine_is_asked_for_by_its_name():
    quoted = re.compile(rf"[\"']({'|'.join(ENGINES)})[\"']")
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in SOURCES}
    offenders = [
        f"{path}:{line}"
        for path, text in texts.items()
        if quoted.search(text)
        for line in lines_that_compare(ast.parse(text), set(ENGINES))
    ]
    assert offenders == []


def test_comparisons_with_names_are_found():
    source = """
engine.runner == "dask"
engine in ("local", "prism")
setting.store == "local"
match runner:
    case "flink" | "spark": pass
ENGINES["dask"]
"""
    assert sorted(lines_that_compare(ast.parse(source), set(ENGINES))) == [2, 3, 6, 6]


def lines_that_compare(tree, names):
    """Yields where something other than a store, which may be `local` too, is compared with one of some names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.MatchValue):
            sides = [node.value]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        else:
            continue
        constants = {c.value for side in sides for c in ast.walk(side) if isinstance(c, ast.Constant)}
        is_store = any(isinstance(side, ast.Attribute) and side.attr == "store" for side in sides)
        if constants & names and not is_store:
            yield node.lineno


@pytest.mark.full
@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_is_light_and_has_examples(command):
    heavy = (
        "apache_beam", "pyspark", "ray", "tensorflow", "keras", "torch", "jax", "pandas", "pyarrow", "numpy", "fsspec",
    )  # fmt: skip
    args = [command, "--help"] if command else ["--help"]
    code = f"""
import sys
from shardkit.cli import main
main({args!r})
print([m for m in {heavy!r} if m in sys.modules])
"""
    result = run("-c", code)
    assert result.returncode == 0, result.stderr
    page, loaded = result.stdout.rstrip().rsplit("\n", 1)
    assert loaded == "[]"
    lines = [line for line in page.split("\nExamples:\n")[1].splitlines() if line.strip()]
    assert all(line.startswith("  ") for line in lines)
    assert any(line.startswith(f"  shardkit {command or ''}".rstrip()) for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_does(command):
    module = importlib.import_module(COMMANDS[command].module)
    undocumented = [p.name for p in module.command.params if p.param_type_name == "option" and not p.help]
    assert undocumented == []
    assert module.command.help


def test_no_file_is_too_long():
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in SOURCES}
    too_long = {name: length for name, length in lengths.items() if length > MAX_LINES}
    assert sorted(too_long) == sorted(LONGER), too_long


def functions():
    """Yields the name, the node and the number of parameters of each function of the three rooms, without `self`."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        owners = {id(f): node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for f in node.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                owner = owners.get(id(node))
                name = node.name if owner is None else f"{owner.name}.{node.name}"
                given = node.args
                named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
                is_bound = owner is not None and "staticmethod" not in map(ast.unparse, node.decorator_list)
                yield f"{path.relative_to(ROOT).as_posix()} {name}", node, len(named) - is_bound


def is_command(node):
    return any(ast.unparse(d).startswith("click.command(") for d in node.decorator_list)


@pytest.mark.full
def test_no_function_is_too_long():
    lengths = {name: node.end_lineno - node.lineno + 1 for name, node, _ in functions()}
    too_long = {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}
    assert sorted(too_long) == sorted(LONGER_FUNCTIONS), too_long


@pytest.mark.full
def test_no_function_takes_too_many_parameters():
    numbers = {name: number for name, node, number in functions() if not is_command(node)}
    too_many = {name: number for name, number in numbers.items() if number > MAX_PARAMETERS}
    assert sorted(too_many) == sorted(MORE_PARAMETERS), too_many


@pytest.mark.full
def test_core_modules_import_without_an_engine():
    not_core = ("shardkit.cli", "shardkit.adapters", "shardkit.__main__")
    core = [m for m in modules() if m.startswith("shardkit") and not m.startswith(not_core)]
    heavy = ("apache_beam", "tensorflow", "keras", "click", "rich", "train", "beam_pipelines")
    code = f"""
import importlib, sys
for name in {core!r}:
    importlib.import_module(name)
print([m for m in {heavy!r} if m in sys.modules])
"""
    result = run("-c", code)
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr


@pytest.mark.full
def test_public_names_are_sorted_and_there():
    with_names = []
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", None) == "__all__" for t in node.targets):
                names = ast.literal_eval(node.value)
                with_names.append(path)
                assert names == sorted(names), path
                parts = path.relative_to(ROOT).with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                if not module.startswith(("train", "beam_pipelines", "shardkit.adapters")):
                    loaded = importlib.import_module(module)
                    assert all(hasattr(loaded, name) for name in names), path
    assert with_names


def test_every_room_is_typed():
    assert [room for room in ROOMS if not (ROOT / room / "py.typed").exists()] == []


@pytest.mark.full
def test_every_module_says_what_it_is_for():
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in SOURCES}
    assert [name for name, text in texts.items() if text.strip() and not ast.get_docstring(ast.parse(text))] == []


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in SOURCES}
    assert [f for f in sorted(folders) if not (f / "__init__.py").exists()] == []


@pytest.mark.full
def test_the_wheel_holds_the_three_rooms_and_nothing_else(own_wheel):
    names = zipfile.ZipFile(own_wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(ROOMS)
    packed = {name for name in names if name.endswith(".py")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in SOURCES}
    assert {f"{room}/py.typed" for room in ROOMS} <= set(names)


@pytest.mark.full
def test_the_wheel_runs_alone(own_wheel, tmp_path):
    zipfile.ZipFile(own_wheel).extractall(tmp_path)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import shardkit.cli
print(shardkit.cli.__file__)
sys.exit(shardkit.cli.main(["--version"]))
"""
    result = run("-P", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()[:2]
    assert first.startswith(str(tmp_path))
    assert second == f"shardkit {own_wheel.name.split('-')[1]}"
