"""A signal ends a command at once, also where a store takes a request and never answers."""

import os
import signal
import subprocess
import sys
import time

import boto3
import pytest

from tests.support.stores.faulty_proxy import Hangs, proxied
from tests.support.stores.servers import BUCKET

pytestmark = pytest.mark.full
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
# Three times the promise, for a busy machine.
LIMIT_S = 3.0


def reads(part):
    return lambda request: request.method == "GET" and part in request.key and not request.query


def writes(part):
    return lambda request: request.method in ("PUT", "POST") and part in request.key


def is_any(request):
    return True


BASE, INPUT = f"s3://{BUCKET}/base", f"s3://{BUCKET}/in/*.csv"
# The command, which requests hang, and which of them is the first to do so.
CASES = {
    "inspect": (["inspect", BASE], is_any, 1),
    "verify": (["verify", BASE], reads("/data/"), 1),
    "bench": (["bench", BASE], reads("/data/"), 1),
    "clean": (["clean", BASE], is_any, 3),
    "doctor": (["doctor", f"s3://{BUCKET}/doctor"], is_any, 20),
    "plan": (["plan", INPUT], reads(".csv"), 1),
    "a destination is looked at": (["convert", "a.csv", f"s3://{BUCKET}/new"], is_any, 1),
    "inputs are listed": (["convert", INPUT, "out"], is_any, 1),
    "heads of inputs are read": (["convert", INPUT, "out"], reads(".csv"), 1),
    "inputs are read": (["convert", INPUT, "out"], reads(".csv"), 3),
    "shards are put": (["convert", "a.csv", f"s3://{BUCKET}/new"], writes("/data/"), 1),
    "shards are put by two processes": (
        ["convert", "a.csv", f"s3://{BUCKET}/new", "--workers", "6"], writes("/data/"), 1
    ),
    "a version is committed": (["convert", "a.csv", f"s3://{BUCKET}/new"], writes(".json"), 1),
}  # fmt: skip


@pytest.fixture(scope="module")
def moto(servers_by_name, tmp_path_factory):
    """A server that holds a dataset and its input."""
    server = servers_by_name("moto")
    table = tmp_path_factory.mktemp("input") / "a.csv"
    table.write_text("x,y\n" + "".join(f"{i % 977},{i % 2}\n" for i in range(20_000)))
    environment = {**os.environ, **server.environment}
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )
    client.upload_file(str(table), BUCKET, "in/a.csv")
    command = [
        sys.executable,
        "-m",
        "shardkit",
        "convert",
        str(table),
        BASE,
        "--split",
        "train=0.9",
        "--split",
        "test=0.1",
    ]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return server, table


@pytest.mark.parametrize(
    ("case", "number"),
    [*((case, signal.SIGTERM) for case in CASES), *((case, signal.SIGINT) for case in list(CASES)[:9:4])],
)
def test_a_signal_ends_a_command_that_a_store_does_not_answer(moto, tmp_path, case, number):
    server, table = moto
    (tmp_path / "a.csv").write_bytes(table.read_bytes())
    arguments, is_meant, first = CASES[case]
    arguments = [argument.replace("/new", f"/{tmp_path.name}") for argument in arguments]
    fault = Hangs(is_meant, first)
    with proxied(server.environment["AWS_ENDPOINT_URL"], fault) as address:
        process = subprocess.Popen(
            [sys.executable, "-m", "shardkit", *arguments],
            env={**os.environ, **server.environment, "AWS_ENDPOINT_URL": address},
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert fault.asked.wait(60), process.poll()
        sent = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        took = time.monotonic() - sent
    assert process.returncode == CODES[number], err
    assert ("terminated: " if number == signal.SIGTERM else "interrupted: ") in err
    assert "Traceback" not in err
    assert took < LIMIT_S
