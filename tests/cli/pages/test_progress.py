"""Progress as a person sees it: on terminals of all kinds, in logs, and after an interruption."""

import io
import itertools
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.cli.pages.phases import Figures, Phase, Speed, describe, draw, find_phases, last_line, plain
from shardkit.cli.pages.progress import Display, is_live
from shardkit.conversion.progress import Progress, Totals, read_totals
from tests.support.campaign import in_campaign

MB = 1_000_000


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def frames_of(text):
    """Returns what a terminal shows of each line, every time before it is drawn anew, and all that it was told."""
    shown, line, column = [], "", 0
    for token in re.findall(r"\r|\n|\x1b\[K|\x1b\[[0-9;]*m|[^\r\n\x1b]+", text):
        if token == "\x1b[K":
            line = line[:column]
        elif token == "\r":
            shown.append(line)
            column = 0
        elif token == "\n":
            shown.append(line)
            line, column = "", 0
        elif not token.startswith("\x1b"):
            line = line[:column] + token + line[column + len(token) :]
            column += len(token)
    return [*shown, line]


def run_in_terminal(command, columns, **environment):
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR", "COLUMNS", "TERM")}
    environment = {**kept, "TERM": "xterm", **environment}
    with subprocess.Popen(command, stdout=follower, stderr=follower, stdin=follower, env=environment) as process:
        os.close(follower)
        raw = b""
        while select.select([leader], [], [], 60)[0]:
            try:
                found = os.read(leader, 1 << 16)
            except OSError:
                break
            if not found:
                break
            raw += found
    os.close(leader)
    return process.returncode, raw.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def slow_table(tmp_path_factory):
    """Inputs whose rows take three seconds to transform, so that there is something to see."""
    folder = tmp_path_factory.mktemp("slow")
    for name in "ab":
        # Large enough that each is worked at by itself.
        (folder / f"{name}.csv").write_text("id,text\n" + "".join(f"{i},{'x' * 2_500}\n" for i in range(40)))
    (folder / "slow.py").write_text("import time\n\n\ndef wait(batch):\n    time.sleep(1.6)\n    return batch\n")
    return folder


def convert_command(folder, destination, *options):
    return [
        *(sys.executable, "-m", "shardkit", "convert", str(folder / "a.csv"), str(folder / "b.csv"), str(destination)),
        *("--map", f"{folder / 'slow.py'}:wait", "--workers", "1", *options),
    ]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, *in_campaign(100)])
def test_a_terminal_shows_one_line_drawn_over_and_keeps_what_is_over(slow_table, tmp_path, columns):
    code, text = run_in_terminal(convert_command(slow_table, tmp_path / "out"), columns)
    assert code == 0, text
    drawn = [f for f in frames_of(text) if f.startswith("reading ")]
    assert any("50 %" in frame for frame in drawn) or any("49 %" in frame for frame in drawn), text
    assert max(map(len, drawn)) < columns
    assert [f for f in frames_of(text) if f.startswith("reading: done, 80 rows, ")] != []
    # Nothing that a killed process would leave behind: no hidden cursor, no moves but to the start of the line.
    assert set(re.findall(r"\x1b\[[^A-Za-z]*[A-Za-z]", text)) <= {"\x1b[K", "\x1b[0m", "\x1b[1m", "\x1b[33m"}
    assert frames_of(text)[-2] == f"Next: shardkit inspect {tmp_path / 'out'}"


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "is_plain"),
    [({"NO_COLOR": "1"}, False), *in_campaign(({"CI": "1"}, True), ({"TERM": "dumb"}, True))],
)
def test_the_environment_is_asked(slow_table, tmp_path, environment, is_plain):
    code, text = run_in_terminal(convert_command(slow_table, tmp_path / "out"), 80, **environment)
    assert code == 0, text
    assert ("\r" in text) == (not is_plain)
    assert ("\x1b[K" in text) == (not is_plain)
    assert "reading: done, 80 rows, " in text
    if "NO_COLOR" in environment:
        assert "\x1b[33m" not in text


@pytest.mark.full
@pytest.mark.slow
def test_a_log_gets_a_line_a_phase_and_no_control_codes(slow_table, tmp_path):
    command = convert_command(slow_table, tmp_path / "out", "--dedup")
    environment = {**os.environ, "FORCE_COLOR": "1"}
    run = subprocess.run(command, capture_output=True, check=True, env=environment)
    lines = [line for line in run.stderr.decode().split("\n") if ": done, " in line]
    assert [line.split(":")[0] for line in lines] == ["first pass", "reading", "writing"]
    assert [re.search(r"([\d,]+) rows", line)[1] for line in lines] == ["80", "80", "40"]
    for line in lines:
        assert re.fullmatch(r"[a-z ]+: done, \d+ rows, [\d.]+ \w+ in [\d.]+ s( \([\d.]+ [kM]B/s\))?", line)
    assert b"\r" not in run.stderr


def test_a_short_run_says_nothing_of_its_phases(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    clock = itertools.count(0.0, 0.4)
    stream = io.StringIO()
    display = Display(stream, is_live=False, started=next(clock))
    for share in (10, 50, 100):
        display.update((Phase("reading", 100, share, num_rows=share),), next(clock))
    display.end(next(clock), is_done=True)
    assert stream.getvalue() == ""


def log_of(seconds, step, num_bytes=1000):
    stream = io.StringIO()
    display = Display(stream, is_live=False, started=0.0)
    for tick in range(int(seconds / step) + 1):
        now = tick * step
        display.update((Phase("reading", num_bytes, int(num_bytes * now / seconds), num_rows=tick + 1),), now)
    display.end(seconds, is_done=True)
    return stream.getvalue().splitlines()


def test_lines_come_every_ten_seconds_at_first_and_a_night_leaves_few():
    assert [line.split(",")[0] for line in log_of(40, 0.25)] == [
        *("reading: 25 %", "reading: 50 %", "reading: 75 %", "reading: 100 %"),
        "reading: done",
    ]
    assert 30 < len(log_of(8 * 3600, 1)) < 150


def test_what_failed_is_not_said_to_be_done():
    stream = Terminal()
    display = Display(stream, is_live=True, started=0.0)
    display.update((Phase("reading", 100, 50, num_rows=5),), 3.0)
    display.end(4.0, is_done=False)
    assert frames_of(stream.getvalue())[-1] == ""
    assert "done" not in stream.getvalue()


@pytest.mark.parametrize(
    ("terminal", "environment", "expected"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
        (True, {"TERM": "xterm", "CI": "true"}, False),
        (True, {"TERM": "xterm", "CI": "false"}, True),
        (False, {"TERM": "xterm", "FORCE_COLOR": "1"}, False),
    ],
)
def test_only_terminals_that_draw_are_drawn_on(terminal, environment, expected):
    assert is_live(Terminal() if terminal else io.StringIO(), environment) is expected


FIGURES = Figures(
    "first pass", 0.5, "50 %", "1,234,567,890 rows", "123 MB/s", "12,345 rejected", "no progress for 2 h 5 min"
)


@given(st.integers(0, 200))
def test_a_line_never_fills_the_terminal_whatever_its_width(width):
    line = draw(FIGURES, width)
    assert len(line) <= max(0, width - 1)
    if width >= 45:
        assert "50 %" in line
        assert "no progress" in line
    if width >= 100:
        assert "━" in line
        assert "12,345 rejected" in line


def test_a_terminal_without_unicode_gets_another_bar():
    assert "#####....." in draw(FIGURES._replace(left="", rate="", rows="", rejected=""), 60, bar="#")
    assert draw(FIGURES, 200, bar="#").isascii()


def test_phases_follow_each_other():
    def names(num_planned_bytes=None, *, has_first_pass=True, **totals):
        return [p.name for p in find_phases(Totals(**totals), 100, num_planned_bytes, has_first_pass=has_first_pass)]

    assert names() == ["first pass"]
    assert names(num_first_pass_bytes=100) == ["first pass", "comparing"]
    assert names(num_first_pass_bytes=100, num_input_bytes=1) == ["first pass", "comparing", "reading"]
    assert names(has_first_pass=False) == ["reading"]
    assert names(num_input_bytes=100, has_first_pass=False) == ["reading", "laying out"]
    assert names(50, num_input_bytes=100, num_framed_bytes=10, has_first_pass=False)[-1] == "writing"
    assert names(50, num_input_bytes=100, has_first_pass=False)[-1] == "writing"


def test_what_was_read_before_is_no_speed():
    speed = Speed(0.0)
    for second in range(1, 11):
        phase = Phase("reading", 1000 * MB, (900 + second) * MB, 900 * MB, num_rows=second)
        speed.add(second, phase.num_worked_bytes)
    figures = describe(phase, speed, 10, 10)
    assert figures.percent == "91 %"
    assert figures.rate == "1.00 MB/s"
    assert figures.left == "1 min 30 s left"
    done = last_line(phase._replace(num_done_bytes=1000 * MB), 100)
    assert "(1.00 MB/s)" in done
    assert "858 MiB of that before" in done


def test_a_phase_that_was_all_done_before_has_no_speed():
    assert "MB/s" not in last_line(Phase("reading", MB, MB, MB, num_rows=7), 0.1)


def test_time_left_follows_the_speed_of_now_and_a_standstill_is_said():
    speed, done = Speed(0.0), 0
    for second in range(1, 101):
        done += 10 * MB if second <= 50 else MB
        speed.add(second, done)
    phase = Phase("reading", done + 60 * MB, done)
    assert describe(phase, speed, 100, 100).left == "1 min 0 s left"
    for second in range(101, 141):
        speed.add(second, done)
    assert describe(phase, speed, 140, 140).left == "no progress for 40 s"
    assert plain(describe(phase, speed, 140, 140)).startswith("reading: ")
    # Rows of a large part whose bytes count when it is done.
    speed.add(141, done, 5)
    assert describe(phase, speed, 141, 141).left == ""


def test_counters_of_processes_and_threads_add_up(tmp_path):
    progress = Progress(tmp_path)
    progress.add(num_rows=3, num_rejected=1)
    again = Progress(tmp_path)
    again.add(num_rows=4, num_kept_input_bytes=5, num_first_pass_rows=6)
    (tmp_path / "1.counters").write_bytes(b"cut off")
    totals = read_totals(tmp_path)
    assert (totals.num_rows, totals.num_rejected) == (7, 1)
    assert (totals.num_kept_input_bytes, totals.num_first_pass_rows) == (5, 6)


@given(
    st.integers(0, 10**9),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), max_size=20),
    st.booleans(),
    st.booleans(),
)
def test_batches_never_count_more_than_their_split_and_its_end_counts_all(
    tmp_path_factory, num_bytes, batches, is_compressed, is_first_pass
):
    folder = tmp_path_factory.mktemp("counters")
    progress = Progress(folder)
    for _ in range(2):
        before = read_totals(folder)
        ticker = progress.reading(num_bytes, is_compressed=is_compressed, is_first_pass=is_first_pass)
        for num_rows, num_batch_bytes in batches:
            ticker.tick(num_rows, num_batch_bytes)
            assert _read(read_totals(folder), is_first_pass) - _read(before, is_first_pass) <= num_bytes
        ticker.end()
        assert _read(read_totals(folder), is_first_pass) - _read(before, is_first_pass) == num_bytes


def _read(totals, is_first_pass):
    return totals.num_first_pass_bytes if is_first_pass else totals.num_input_bytes


def test_no_room_for_counters_does_not_stop_the_work(tmp_path):
    (tmp_path / "file").write_text("no folder")
    Progress(tmp_path / "file").add(num_rows=1)
    assert read_totals(tmp_path / "file") == Totals()
