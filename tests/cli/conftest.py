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


@pytest.fixture
def table(tmp_path):
    """Returns a CSV file of 200 rows."""
    path = tmp_path / "table.csv"
    path.write_text("id,zip,x\n" + "".join(f"{i},{i:05d},{i / 8}\n" for i in range(200)))
    return path
