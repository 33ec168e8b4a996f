"""What is HDFS's own: names of clusters, files that appear whole, its times, quotas and data nodes."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import pytest

from shardkit.dataset.open import list_versions, open_dataset
from shardkit.errors import ConflictError, OutOfSpaceError, StorageError
from shardkit.storage import files as storage
from tests.support.commands import run_shardkit

pytestmark = pytest.mark.full
hdfs_native = pytest.importorskip("hdfs_native")


LIST_AND_REMOVE = """
(found,), (listed,) = storage.expand_input("{folder}/raw/*.csv").files, storage.list_files("{folder}")
print(found.path, listed.path)
storage.remove_folder("{folder}")
"""


@pytest.fixture
def cluster(servers_by_name):
    return servers_by_name("hdfs")


@pytest.fixture
def folder(cluster, tmp_path):
    """The URL of a folder that is not there. The cluster has answered, so that it is waited for."""
    url = f"{cluster.url}/{tmp_path.name}"
    assert not storage.exists(url)
    return url


@pytest.fixture
def table(tmp_path):
    """A table of 40,000 rows."""
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{i},{i / 8}\n" for i in range(40_000)))
    return path


def in_another_process(code, **environment):
    """Runs code with the functions of storage."""
    code = f"from shardkit.storage import files as storage\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def put(path, content, tmp_path):
    (tmp_path / "content").unlink(missing_ok=True)
    (tmp_path / "content").write_bytes(content)
    storage.put_file(tmp_path / "content", path)


def configuration(folder, cluster):
    """Makes a folder for `HADOOP_CONF_DIR` that names the default cluster."""
    folder.mkdir()
    (folder / "core-site.xml").write_text(
        f"<configuration><property><name>fs.defaultFS</name><value>hdfs://{cluster}</value></property></configuration>"
    )
    (folder / "hdfs-site.xml").write_text("<configuration></configuration>")
    return str(folder)


@pytest.mark.parametrize("step", ["create", "rename"])
def test_a_writer_that_is_held_in_the_middle_loses_to_one_that_overtakes_it(folder, monkeypatch, step):
    path = f"{folder}/00000001.json"
    original = getattr(hdfs_native.Client, step)

    def held(*args, **options):
        monkeypatch.setattr(hdfs_native.Client, step, original)
        in_another_process(f"storage.commit_exclusive({path!r}, b'other')")
        return original(*args, **options)

    monkeypatch.setattr(hdfs_native.Client, step, held)
    with pytest.raises(ConflictError, match="another conversion committed first"):
        storage.commit_exclusive(path, b"own")
    assert storage.read_bytes(path) == b"other"
    assert storage.list_names(folder) == ["00000001.json"]


def test_a_writer_that_is_killed_leaves_nothing_under_the_final_name(folder, tmp_path):
    path = f"{folder}/a"
    code = f"""
        import os, signal
        import hdfs_native
        hdfs_native.FileWriter.close = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        storage.commit_exclusive({path!r}, b"whole")
    """
    with pytest.raises(AssertionError):
        in_another_process(textwrap.dedent(code))
    (left,) = storage.list_names(folder)
    assert left.startswith(".a.")
    storage.commit_exclusive(path, b"whole")
    assert storage.read_bytes(path) == b"whole"


def test_names_keep_their_cluster_and_none_is_looked_for_in_the_default_one(folder, tmp_path, monkeypatch):
    put(f"{folder}/raw/a.csv", b"x\n1\n", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        default = configuration(tmp_path / "conf", f"127.0.0.1:{other.getsockname()[1]}")
        found = in_another_process(
            LIST_AND_REMOVE.format(folder=folder), HADOOP_CONF_DIR=default, SHARDKIT_STORAGE_DEADLINE="3"
        )
        assert found == f"{folder}/raw/a.csv {folder}/raw/a.csv"
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert not storage.exists(folder)


def test_names_in_the_default_cluster_have_none(cluster, folder, tmp_path):
    put(f"{folder}/raw/a.csv", b"x\n1\n", tmp_path)
    authority, _, path = folder.partition("://")[2].partition("/")
    url = f"hdfs:///{path}"
    default = configuration(tmp_path / "conf", authority)
    found = in_another_process(LIST_AND_REMOVE.format(folder=url), HADOOP_CONF_DIR=default)
    assert found == f"{url}/raw/a.csv {url}/raw/a.csv"
    assert not storage.exists(folder)


def test_hadoops_own_settings_are_given_as_an_option(folder, tmp_path):
    put(f"{folder}/a", b"1", tmp_path)
    authority, _, path = folder.partition("://")[2].partition("/")
    options = json.dumps({"hdfs": {"config": {"fs.defaultFS": f"hdfs://{authority}"}}})
    found = in_another_process(f"print(storage.list_names('hdfs:///{path}'))", SHARDKIT_STORAGE_OPTIONS=options)
    assert found == "['a']"


def test_a_time_is_in_seconds_and_a_version_changes_with_the_content(folder, tmp_path):
    put(f"{folder}/a", b"one", tmp_path)
    (listed,) = storage.list_files(folder)
    assert abs(listed.modified_at - time.time()) < 100
    before = storage.stat_file(listed.path)
    assert storage.expand_input(folder).files == [before]
    put(f"{folder}/a", b"two", tmp_path)
    assert storage.stat_file(listed.path).version not in ("", before.version)


KILL_IN_MANIFEST = """
import os, signal, sys
from pathlib import Path

import hdfs_native

once, create = Path(os.environ["KILL_ONCE"]), hdfs_native.Client.create

def creating(client, path, *args, **options):
    writer = create(client, path, *args, **options)
    if "00000001.json" in path and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return writer

hdfs_native.Client.create = creating
"""


def test_a_command_that_is_killed_in_its_manifest_goes_on_when_it_runs_again(folder, table, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(KILL_IN_MANIFEST)
    paths = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": paths, "KILL_ONCE": str(tmp_path / "killed")}
    killed = run_shardkit("convert", table, folder, "--num-shards", "2", env=settings)
    assert (tmp_path / "killed").exists()
    # The process that was killed may have been one that is replaced.
    if killed.returncode != 0:
        assert list_versions(folder) == []
        done = run_shardkit("convert", table, folder, "--num-shards", "2", env=settings)
        assert done.returncode == 0, done.stderr
    assert list_versions(folder) == [1]
    assert run_shardkit("verify", folder).returncode == 0
    temporary = [name for name in storage.list_names(f"{folder}/manifests") if name.startswith(".00000001.json.")]
    assert len(temporary) == 1
    cleaned = run_shardkit("clean", folder, "--older-than", "0", "--delete")
    assert cleaned.returncode == 0, cleaned.stderr
    assert "temporary files of writers that died" in cleaned.stdout
    assert "not of shardkit" not in cleaned.stdout
    assert not set(temporary) & set(storage.list_names(f"{folder}/manifests"))


@pytest.mark.parametrize("command", ["most-names {path} 4", "most-bytes {path} 1024"])
def test_a_quota_is_no_space_left(cluster, folder, table, tmp_path, command):
    put(f"{folder}/a", b"1", tmp_path)
    path = f"/{folder.partition('://')[2].partition('/')[2]}"
    cluster.obey(command.format(path=path))

    def fill():
        for number in range(4):
            storage.commit_exclusive(f"{folder}/{number}", b"1")

    with pytest.raises(OutOfSpaceError, match="quota"):
        fill()
    if command.startswith("most-names"):
        done = run_shardkit("convert", table, f"{folder}/set")
        assert done.returncode == 6, done.stderr
        assert "quota" in done.stderr
        assert ".java" not in done.stderr + done.stdout


def test_a_cluster_that_is_read_only_for_a_while_costs_time_only(cluster, folder, monkeypatch):
    storage.commit_exclusive(f"{folder}/before", b"1")
    cluster.obey("read-only")
    try:
        with monkeypatch.context() as hasty:
            hasty.setenv("SHARDKIT_STORAGE_DEADLINE", "0.5")
            with pytest.raises(StorageError, match="safe mode") as caught:
                storage.commit_exclusive(f"{folder}/a", b"1")
        assert ".java" not in str(caught.value)
        timer = threading.Timer(2.0, cluster.obey, ["writable"])
        timer.start()
        storage.commit_exclusive(f"{folder}/a", b"1")
        timer.join()
    finally:
        cluster.obey("writable")
    assert storage.read_bytes(f"{folder}/a") == b"1"


def test_a_refusal_to_write_names_the_user(folder, tmp_path):
    put(f"{folder}/a", b"1", tmp_path)
    authority, _, path = folder.partition("://")[2].partition("/")
    hdfs_native.Client(f"hdfs://{authority}").set_permission(f"/{path}", 0o755)
    code = f"""
        from shardkit.errors import StorageError
        try:
            storage.commit_exclusive("{folder}/b", b"1")
        except StorageError as error:
            print(error)
    """
    said = in_another_process(textwrap.dedent(code), HADOOP_USER_NAME="somebody")
    assert "the store refuses to be written to" in said
    assert "Permission denied: user=somebody" in said
    assert "\n" not in said


def test_a_data_node_may_die_while_files_are_read_and_written(cluster, folder, table, tmp_path):
    content = b"".join(i.to_bytes(4, "little") for i in range(4 * 2**20))
    put(f"{folder}/a", content, tmp_path)
    try:
        with storage.open_read(f"{folder}/a") as file:
            assert file.read(1000) == content[:1000]
            cluster.obey("stop")
            assert file.read() == content[1000:]
        put(f"{folder}/b", content, tmp_path)
        done = run_shardkit("convert", table, f"{folder}/set", "--num-shards", "2", "--workers", "1")
        assert done.returncode == 0, done.stderr
    finally:
        cluster.obey("start")
    local = run_shardkit("convert", table, tmp_path / "set", "--num-shards", "2", "--workers", "1")
    assert local.returncode == 0, local.stderr
    assert storage.read_bytes(f"{folder}/b") == content
    assert list(open_dataset(f"{folder}/set").shards) == list(open_dataset(tmp_path / "set").shards)


def test_a_file_that_is_replaced_while_it_is_read_is_no_mixture(folder, tmp_path, monkeypatch):
    first, second = (bytes([i]) * (12 * 2**20) for i in (1, 2))
    put(f"{folder}/a", first, tmp_path)
    with storage.open_read(f"{folder}/a") as file:
        read = [file.read(10)]
        put(f"{folder}/a", second, tmp_path)
        monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "1")
        with suppress(StorageError):
            read.append(file.read())
    assert set(b"".join(read)) == {1}
