"""The command line, run in the process of the tests."""

import pytest

from shardkit.cli import main


@pytest.fixture
def run(capsys):
    """Returns a function that runs a command, and gives its exit code, its output, and its messages on one line."""

    def invoke(*arguments):
        code = main(list(map(str, arguments)))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, " ".join(captured.err.split())

    return invoke
