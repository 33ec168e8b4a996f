"""Options from a file and from --set: strict names, and what is nearer to the user wins."""

from __future__ import annotations

import click
import pytest

from shardkit.cli.shell.option_files import settings_options
from shardkit.cli.shell.option_types import StepsType
from shardkit.errors import UsageError


@click.command(params=settings_options())
@click.argument("dataset")
@click.option("--label", required=True)
@click.option("--epochs", type=click.IntRange(min=1), default=7)
@click.option("--features", metavar="A,B,...")
@click.option("--resume", is_flag=True)
@click.option("--split", multiple=True)
@click.option("--profile-steps", type=StepsType())
def probe(**typed):
    return typed


@pytest.fixture
def ask(tmp_path):
    """Returns a function that gives what the command gets for a file and arguments."""

    def read(content, *arguments):
        (tmp_path / "run.toml").write_text(content)
        return probe.main(["--config", str(tmp_path / "run.toml"), *arguments], standalone_mode=False)

    return read


def test_what_is_nearer_wins(ask):
    assert ask('dataset = "d"\nlabel = "a"')["epochs"] == 7
    assert ask('dataset = "d"\nlabel = "a"\nepochs = 3')["epochs"] == 3
    # In whatever order they are typed.
    for arguments in (["--set", "epochs=4"], ["--set", "epochs=4", "--label", "b"]):
        assert ask('label = "a"\nepochs = 3', "d", *arguments)["epochs"] == 4
    found = ask('label = "a"\nepochs = 3\ndataset = "d"', "--epochs", "5", "--set", "epochs=4", "--set", "label=c", "e")
    assert (found["epochs"], found["label"], found["dataset"]) == (5, "c", "e")


def test_every_kind_of_value(ask):
    content = 'label = "a"\nfeatures = ["x", "y"]\nresume = true\nsplit = ["u", "v"]\nprofile-steps = "2:5"'
    found = ask(content, "d")
    assert (found["features"], found["resume"], found["split"]) == ("x,y", True, ("u", "v"))
    assert found["profile_steps"] == (2, 5)
    found = ask(content, "d", "--set", "resume=false", "--set", "split=w", "--set", "features=z")
    assert (found["features"], found["resume"], found["split"]) == ("z", False, ("w",))


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("epoch = 3", [], "Did you mean 'epochs'"),
        ("label = ['a']", [], "without brackets"),
        ("resume = 'yes'", [], "must be true or false"),
        ("epochs = true", [], "must not be true or false"),
        ("split = 'u'", [], r"Write split = \[...\]"),
        ("config = 'x'", [], "no option"),
        ("[train]\nepochs = 3", [], "the section 'train', which is no option.*without sections"),
        ("label = ", [], "is no TOML"),
        ("", ["--set", "epochs"], "sets nothing"),
        ("", ["--set", "labels=a"], "Did you mean 'label'"),
    ],
)
def test_what_is_wrong_is_named(ask, content, arguments, message):
    with pytest.raises(UsageError, match=message):
        ask(content, "d", *arguments)


@pytest.mark.parametrize(("key", "value"), [("epochs", "0"), ("profile-steps", "'9:4'"), ("profile-steps", "'9'")])
def test_values_are_checked_as_typed_ones_are_and_say_where_they_stand(ask, key, value):
    with pytest.raises(UsageError, match=f"'{key}' in the config") as caught:
        ask(f"label = 'a'\n{key} = {value}", "d")
    assert str(caught.value.where).endswith("run.toml")
    with pytest.raises(UsageError, match=f"'{key}' in the option --set"):
        ask("label = 'a'", "d", "--set", f"{key}={value.strip(chr(39))}")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="the config is not there"):
        probe.main(["--config", str(tmp_path / "none.toml"), "d"], standalone_mode=False)
