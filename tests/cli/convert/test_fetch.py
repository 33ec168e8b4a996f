"""Lists of URLs through the command line: rows add up, what fails can be tried again, a killed conversion goes on."""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

from shardkit.dataset.open import open_dataset
from tests.support.commands import shardkit
from tests.support.in_process import read_rows
from tests.support.web_server import WebServer, picture

pytestmark = pytest.mark.full

KINDS = ("missing", "page", "unwilling", "forbidden", "loop", "big")
OPTIONS = ("--fetch", "url=image", "--fetch-private", "--max-record-size", "100KiB")


@pytest.fixture
def server():
    with WebServer() as server:
        yield server


def write_list(path, addresses):
    path.write_text("url,caption\n" + "".join(f"{url},picture {i}\n" for i, url in enumerate(addresses)))
    return path


@pytest.fixture
def urls(server, tmp_path):
    """Returns a list of 120 addresses, of which every tenth fails."""
    kinds = [KINDS[i // 10 % len(KINDS)] if i % 10 == 3 else "ok" for i in range(120)]
    return write_list(tmp_path / "urls.csv", [server.url(f"{kind}/{i}") for i, kind in enumerate(kinds)])


def images(dataset, version=None):
    rows = read_rows(open_dataset(str(dataset), version), "train")
    return {row["caption"]: row["image"] for row in rows}


def contents(dataset):
    """Returns the records of each shard."""
    return {p.name: gzip.decompress(p.read_bytes()) for p in sorted(dataset.rglob("*.tfrecord.gz"))}


def test_rows_add_up_and_what_fails_is_kept_with_its_reason(urls, tmp_path):
    out = tmp_path / "out"
    done = shardkit("convert", urls, out, *OPTIONS, "--on-bad-record", "quarantine", "--max-bad", "10%")
    assert "120 rows in, 108 examples out, 12 rejected" in done.stdout
    assert "secret" not in done.stdout + done.stderr
    assert images(out) == {f"picture {i}": picture(i) for i in range(120) if i % 10 != 3}
    rejected = [json.loads(line) for line in shardkit("inspect", out, "--rejected", "--json").stdout.splitlines()]
    assert [record["position"] for record in rejected] == [f"row {i + 1}" for i in range(3, 120, 10)]
    assert len({record["reason"] for record in rejected}) == len(KINDS)
    assert shardkit("verify", out, "--decode").stdout.startswith("ok")
    again = shardkit("convert", urls, tmp_path / "again", *OPTIONS, "--on-bad-record", "quarantine", "--max-bad", "10%")
    assert "108 examples out" in again.stdout
    assert contents(tmp_path / "again") == contents(out)


def test_the_first_failure_ends_a_conversion_that_tolerates_none(urls, tmp_path):
    done = shardkit("convert", urls, tmp_path / "out", *OPTIONS, code=3)
    assert "the URL cannot be fetched in urls.csv, row 4: status 404" in " ".join(done.stderr.split())
    assert "secret" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_conversion_that_ended_with_too_many_failures_tries_them_again(server, tmp_path):
    urls = write_list(tmp_path / "urls.csv", [server.url(f"{'page' if i % 2 else 'ok'}/{i}") for i in range(20)])
    command = ("convert", urls, tmp_path / "out", *OPTIONS, "--on-bad-record", "skip", "--max-bad", "5%")
    assert "10 of 20 rows are bad" in " ".join(shardkit(*command, code=3).stderr.split())
    server.works_again = True
    assert "20 rows in, 20 examples out" in shardkit(*command).stdout


def test_images_are_scaled_and_columns_chosen_after_they_were_fetched(server, tmp_path):
    (tmp_path / "urls.jsonl").write_text("".join(json.dumps({"u": server.url(f"ok/{i}")}) + "\n" for i in range(9)))
    steps = ("--select", "SELECT image AS photo FROM rows", "--image-size", "4x3", "--image-format", "jpeg")
    shardkit("convert", tmp_path / "urls.jsonl", tmp_path / "out", "--fetch", "u=image", "--fetch-private", *steps)
    rows = read_rows(open_dataset(str(tmp_path / "out")), "train")
    assert [list(row) for row in rows] == [["photo"]] * 9
    (tmp_path / "photo").write_bytes(rows[0]["photo"])
    with Image.open(tmp_path / "photo") as image:
        assert (image.format, image.size) == ("JPEG", (3, 4))


def test_failed_rows_are_appended_once_they_can_be_fetched(server, tmp_path):
    addresses = [server.url(f"{'missing' if i == 5 else 'page' if i % 10 == 3 else 'ok'}/{i}") for i in range(60)]
    urls, out = write_list(tmp_path / "urls.csv", [*addresses, "no address"]), tmp_path / "out"
    shardkit("convert", urls, out, *OPTIONS, "--on-bad-record", "quarantine", "--max-bad", "20%")
    assert len(images(out)) == 53
    server.works_again = True
    done = shardkit("convert", out, "--append", "--fetch-again")
    assert "69 rows in, 59 examples out, 10 rejected" in done.stdout
    assert "secret" not in done.stdout + done.stderr
    assert images(out) == {f"picture {i}": picture(i) for i in range(60) if i != 5}
    assert len(images(out, 1)) == 53
    done = shardkit("convert", out, "--append", "--fetch-again")
    assert "71 rows in, 59 examples out, 12 rejected" in done.stdout
    assert server.asked["/missing/5"] == 3
    assert "Nothing to append" in shardkit("convert", urls, out, "--append").stdout
    more = write_list(tmp_path / "more.csv", [server.url("ok/100")])
    assert "60 examples out" in shardkit("convert", urls, more, out, "--append").stdout
    assert shardkit("verify", out).stdout.startswith("ok")
    assert not (out / "work").exists()


def test_nothing_is_to_be_fetched_again(server, tmp_path):
    urls, out = write_list(tmp_path / "urls.csv", [server.url("ok/1")]), tmp_path / "out"
    shardkit("convert", urls, out, *OPTIONS, "--on-bad-record", "quarantine")
    assert "has no rows that are to be fetched again" in shardkit("convert", out, "--append", "--fetch-again").stdout
    assert "and no inputs" in shardkit("convert", urls, out, "--append", "--fetch-again", code=2).stderr
    shardkit("convert", urls, tmp_path / "plain")
    done = shardkit("convert", tmp_path / "plain", "--append", "--fetch-again", code=2)
    assert "it was made without --fetch" in " ".join(done.stderr.split())


def test_a_killed_conversion_goes_on_behind_the_parts_that_were_fetched(server, tmp_path):
    folder, padding = tmp_path / "lists", "x" * 1500
    folder.mkdir()
    # The smallest part is begun last.
    for part, num_rows in enumerate((60, 60, 50)):
        kinds = ["hang" if part == 2 and i == 7 else "ok" for i in range(num_rows)]
        addresses = [f"{server.url(f'{kind}/{part * 60 + i}')}{padding}" for i, kind in enumerate(kinds)]
        write_list(folder / f"{part}.csv", addresses)
    command = [sys.executable, "-P", "-m", "shardkit", "convert", str(folder), str(tmp_path / "out"), *OPTIONS]
    with subprocess.Popen([*command, "--workers", "1"], start_new_session=True) as process:
        finished = tmp_path / "out" / "work"
        while len(list(finished.glob("*/extract/*.msgpack"))) < 2 or not server.asked["/hang/127"]:
            assert process.poll() is None
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    before = {path: count for path, count in server.asked.items() if path.startswith("/ok/") and int(path[4:]) < 120}
    assert len(before) == 120
    server.release.set()
    done = shardkit("convert", folder, tmp_path / "out", *OPTIONS, "--workers", "1")
    assert "Going on: 2 of 3 parts were read before" in done.stderr
    assert "170 rows in, 170 examples out" in done.stdout
    assert {path: server.asked[path] for path in before} == dict.fromkeys(before, 1)
    shardkit("convert", folder, tmp_path / "whole", *OPTIONS)
    assert contents(tmp_path / "whole") == contents(tmp_path / "out")
