"""Every message about a wrong request says what to do next."""

import ast

import pytest

from tests.support.paths import ROOT

FILES = [path for room in ("shardkit", "beam_pipelines", "train") for path in sorted((ROOT / room).rglob("*.py"))]


def usage_errors(source):
    for node in ast.walk(ast.parse(source)):
        # click's error of the same name is an attribute of click; its command adds what to try.
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "UsageError":
            yield node


def lacks_next_step(call):
    steps = [k.value for k in call.keywords if k.arg == "next_step"]
    if not steps:
        # Parts that a helper gives, which the errors it is called for must name.
        return not any(k.arg is None for k in call.keywords)
    return isinstance(steps[0], ast.Constant) and not steps[0].value


@pytest.mark.full
def test_every_usage_error_has_a_next_step():
    errors = [(path, call) for path in FILES for call in usage_errors(path.read_text(encoding="utf-8"))]
    assert len(errors) > 150
    lacking = [f"{path.relative_to(ROOT)}:{call.lineno}" for path, call in errors if lacks_next_step(call)]
    assert lacking == []


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        ("raise UsageError('a', where=path)", True),
        ("raise UsageError('a', next_step=None)", True),
        ("raise UsageError('a', next_step='')", True),
        ("raise UsageError('a', next_step=f'Write {x}')", False),
        ("raise UsageError('a', **parts)", False),
    ],
)
def test_what_lacks_one_is_found(source, lacks):
    assert [lacks_next_step(call) for call in usage_errors(source)] == [lacks]
