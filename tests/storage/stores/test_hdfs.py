"""What is HDFS's own: names of clusters, files that appear whole, its times, quotas and data nodes."""

import os
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from shardkit.errors import ConflictError
from shardkit.storage import files as storage

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
    return f"{cluster.url}/{tmp_path.name}"


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


def test_a_time_is_in_seconds_and_a_version_changes_with_the_content(folder, tmp_path):
    put(f"{folder}/a", b"one", tmp_path)
    (listed,) = storage.list_files(folder)
    assert abs(listed.modified_at - time.time()) < 100
    before = storage.stat_file(listed.path)
    assert storage.expand_input(folder).files == [before]
    put(f"{folder}/a", b"two", tmp_path)
    assert storage.stat_file(listed.path).version not in ("", before.version)
