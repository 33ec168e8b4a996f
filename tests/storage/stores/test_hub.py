"""What is the hub's own: revisions, commits, tokens, and how it refuses."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
import yaml

import shardkit
from shardkit.errors import ConflictError, StorageError, UsageError
from shardkit.sources.listing import expand_inputs
from shardkit.storage import files as storage
from shardkit.storage import objects
from tests.support.commands import run_shardkit
from tests.support.stores.servers import use

pytestmark = pytest.mark.full
huggingface_hub = pytest.importorskip("huggingface_hub")

NUM_FILES = 12


@pytest.fixture
def hub(servers_by_name, monkeypatch):
    server = servers_by_name("hub")
    use(server, monkeypatch)
    yield server
    tell(server)


@pytest.fixture
def api(hub):
    return huggingface_hub.HfApi(endpoint=hub.environment["HF_ENDPOINT"], token=hub.environment["HF_TOKEN"])


@pytest.fixture
def repository(api, tmp_path):
    """A repository of tables, in folders, and how `hf upload` puts them there."""
    name = f"owner/{tmp_path.name}"
    api.create_repo(name, repo_type="dataset")
    raw = tmp_path / "raw"
    for i in range(NUM_FILES):
        path = raw / f"part-{i % 3}" / f"{i:02}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x,y\n" + "".join(f"{i * 100 + j},{j % 7}\n" for j in range(100)))
    api.upload_folder(repo_id=name, repo_type="dataset", folder_path=raw)
    return name


def tell(hub, **what):
    """Tells the hub how to fail, and returns what it was asked since the last time."""
    request = urllib.request.Request(
        f"{hub.environment['HF_ENDPOINT']}/tests/faults",
        data=json.dumps(what).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def replaced(api, repository, path, content):
    api.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=repository, repo_type="dataset")


def test_a_conversion_of_the_hub_is_one_of_the_same_files_here(hub, api, repository, tmp_path):
    replaced(api, repository, "README.md", b"---\ntags: []\n---\n# A card\n")
    options = ("--split", "train=0.8", "--split", "test=0.2", "--seed", "3")
    for name, inputs in (("far", f"hf://datasets/{repository}"), ("near", tmp_path / "raw")):
        done = run_shardkit("convert", inputs, tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        assert hub.environment["HF_TOKEN"] not in done.stdout + done.stderr
    shards = [{p.name: p.read_bytes() for p in (tmp_path / n).rglob("*.tfrecord.gz")} for n in ("far", "near")]
    assert shards[0] == shards[1]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert hub.environment["HF_TOKEN"].encode() not in path.read_bytes()


def test_the_manifest_names_the_commit_and_later_files_are_appended(hub, api, repository, tmp_path):
    url, out = f"hf://datasets/{repository}", tmp_path / "set"
    first = api.dataset_info(repository).sha
    assert run_shardkit("convert", f"{url}/part-0", out).returncode == 0
    manifest = (out / "manifests" / "00000001.json").read_text()
    assert f"{url}@{first}/part-0" in manifest
    replaced(api, repository, "part-0/99.csv", b"x,y\n9999,1\n")
    assert "1 file" in run_shardkit("convert", f"{url}/part-0", out, "--append").stderr
    assert "Nothing to append" in run_shardkit("convert", f"{url}@main/part-0", out, "--append").stdout
    assert shardkit.open(str(out))["train"].num_examples == NUM_FILES // 3 * 100 + 1
    replaced(api, repository, "part-0/99.csv", b"x,y\n9999,1\n5,5\n")
    changed = run_shardkit("convert", f"{url}/part-0", out, "--append")
    assert changed.returncode == 2
    assert "a file changed since it was converted" in changed.stderr


def test_files_that_were_listed_are_read_as_they_were(hub, api, repository):
    url = f"hf://datasets/{repository}"
    before = storage.read_bytes(f"{url}/part-0/00.csv")
    files = expand_inputs([f"{url}/part-0"]).files
    replaced(api, repository, "part-0/00.csv", b"other")
    api.delete_file("part-0/03.csv", repository, repo_type="dataset")
    assert storage.read_bytes(f"{url}/part-0/00.csv") == b"other"
    assert storage.read_bytes(files[0].path) == before
    assert storage.stat_file(files[0].path) == files[0]
    assert storage.read_bytes(files[1].path).startswith(b"x,y\n300,")
    assert storage.pin(files[0].path) == files[0].path


def test_an_open_file_that_is_replaced_is_no_mixture(hub, api, repository, monkeypatch):
    monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "0.3")
    url = f"hf://datasets/{repository}/a.bin"
    replaced(api, repository, "a.bin", bytes(12 << 20))
    with storage.open_read(url) as file:
        assert file.read(10) == bytes(10)
        replaced(api, repository, "a.bin", b"1" * (12 << 20))
        file.seek(11 << 20)
        with pytest.raises(StorageError, match="replaced while it was read"):
            file.read(10)


def test_a_revision_is_named_after_the_repository(hub, api, repository):
    url, sha = f"hf://datasets/{repository}", api.dataset_info(repository).sha
    replaced(api, repository, "part-0/00.csv", b"new")
    assert storage.read_bytes(f"{url}@main/part-0/00.csv") == b"new"
    assert storage.read_bytes(f"{url}@{sha}/part-0/00.csv").startswith(b"x,y")
    listed = storage.expand_input(f"{url}@{sha}/part-*/*.csv").files
    assert len(listed) == NUM_FILES
    assert all(file.path.startswith(f"{url}@{sha}/part-") for file in listed)


def test_a_listing_goes_over_all_pages_and_costs_a_request_each(hub, repository):
    tell(hub)
    assert len(storage.expand_input(f"hf://datasets/{repository}").files) == NUM_FILES
    asked = tell(hub)
    assert len([line for line in asked if "/tree/" in line]) == 3
    assert len(asked) == 4


def test_a_range_costs_one_request_of_the_hub(hub, api, repository):
    replaced(api, repository, "a.bin", bytes(range(256)) * 4096)
    tell(hub)
    assert storage.read_range(f"hf://datasets/{repository}/a.bin", 255, 3) == b"\xff\x00\x01"
    asked = tell(hub)
    assert [line.partition("?")[0].split("/")[1] for line in asked] == ["datasets", "cdn"]


def convert(inputs, out, *options, **environment):
    done = run_shardkit(
        "convert", inputs, out, *options, env={**os.environ, "SHARDKIT_STORAGE_DEADLINE": "1", **environment}
    )
    assert os.environ["HF_TOKEN"] not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_private_dataset_needs_a_token(hub, api, repository, tmp_path):
    api.create_repo(f"{repository}-private", repo_type="dataset", private=True)
    replaced(api, f"{repository}-private", "a.csv", b"x\n1\n")
    url = f"hf://datasets/{repository}-private"
    for token in ("", "hf_anotherone"):
        code, said = convert(url, tmp_path / "set", HF_TOKEN=token, HF_HOME=str(tmp_path))
        assert code == 5
        assert "refuses to be read" in said
        assert "set HF_TOKEN" in said
        assert "hf_another" not in said
    assert convert(url, tmp_path / "set")[0] == 0
    tell(hub, gated=[f"{repository}-private"])
    code, said = convert(url, tmp_path / "set2")
    assert code == 5
    assert "ask for access" in said


def test_what_is_not_there_is_said_to_be_missing(hub, repository, tmp_path):
    for url in ("hf://datasets/owner/nowhere", f"hf://datasets/{repository}@nothing/part-0"):
        code, said = convert(url, tmp_path / "set")
        assert code == 2
        assert "there is no such dataset or revision on the hub" in said
    code, said = convert(f"hf://datasets/{repository}/*.parquet", tmp_path / "set")
    assert code == 2
    assert "no file matches" in said
    for wrong in ("hf://owner/name", "hf://datasets/name", "hf:datasets/owner/name", "hf://hf_token@datasets/o/n"):
        with pytest.raises(UsageError, match="names no dataset of the Hugging Face Hub") as caught:
            storage.normalize(wrong)
        assert "hf_token" not in str(caught.value)


def test_a_hub_that_is_away_or_forbidden_is_said_to_be_so(repository, tmp_path):
    url = f"hf://datasets/{repository}"
    code, said = convert(url, tmp_path / "set", HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 5
    assert "the store does not answer" in said
    code, said = convert(url, tmp_path / "set", HF_HUB_OFFLINE="1")
    assert code == 2
    assert "HF_HUB_OFFLINE is set" in said


@pytest.mark.parametrize("place", ["revision", "tree", "paths-info", "resolve", "cdn"])
@pytest.mark.parametrize("status", [429, 503])
def test_faults_that_pass_are_outlasted(hub, api, repository, tmp_path, place, status):
    replaced(api, repository, "a.parquet", b"no table, but large enough for LFS")
    storage.stat_file(f"hf://datasets/{repository}/a.parquet")
    headers = {"Retry-After": "1"} if status == 429 else {}
    tell(hub, faults=[{"path": f"/{place}/", "left": 2, "status": status, "headers": headers}])
    path = storage.pin(f"hf://datasets/{repository}")
    (found,) = storage.expand_input(f"{path}/*.parquet").files
    storage.stat_file(found.path)
    assert storage.read_bytes(found.path).startswith(b"no table")


def test_a_rate_limit_that_does_not_pass_says_how_long_it_lasts(hub, repository, monkeypatch):
    monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "0.5")
    tell(hub, faults=[{"path": "/resolve/", "left": 99, "status": 429, "headers": {"Retry-After": "240"}}])
    with pytest.raises(StorageError, match="too many requests; the hub asks to wait 240 s"):
        storage.read_bytes(f"hf://datasets/{repository}/part-0/00.csv")


def test_a_commit_whose_parent_is_stale_is_made_on_the_newest_one(hub, api, repository, monkeypatch):
    url = f"hf://datasets/{repository}/m"
    tell(hub, faults=[{"path": "/commit/", "left": 1, "status": 412, "message": "A commit has happened since."}])
    storage.commit_exclusive(f"{url}/1", b"own")
    assert storage.read_bytes(f"{url}/1") == b"own"
    # The commit is made, and its answer lost.
    real = huggingface_hub.HfApi.create_commit
    lost = []

    def once(self, *args, **options):
        found = real(self, *args, **options)
        if not lost:
            lost.append(found)
            raise ConnectionError("reset by peer")
        return found

    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", once)
    storage.commit_exclusive(f"{url}/2", b"own")
    assert len(lost) == 1
    with pytest.raises(ConflictError):
        storage.commit_exclusive(f"{url}/2", b"other")


def test_a_folder_is_removed_in_one_commit(hub, repository):
    tell(hub)
    storage.remove_folder(f"hf://datasets/{repository}/part-0")
    assert len([line for line in tell(hub) if "/commit/" in line]) == 1
    assert storage.list_names(f"hf://datasets/{repository}") == ["part-1", "part-2"]
    storage.remove_folder(f"hf://datasets/{repository}/part-0")


def test_what_another_tool_uploads_is_read(hub, api, repository, tmp_path):
    assert run_shardkit("convert", tmp_path / "raw", tmp_path / "set").returncode == 0
    api.upload_folder(
        repo_id=repository, repo_type="dataset", folder_path=tmp_path / "set", path_in_repo="set", delete_patterns="*"
    )
    url = f"hf://datasets/{repository}/set"
    assert "1,200 examples" in run_shardkit("verify", url).stdout
    far, near = (
        [batch["x"].tolist() for batch in shardkit.open(place)["train"].batches(global_batch_size=64)]
        for place in (url, str(tmp_path / "set"))
    )
    assert far == near


@pytest.mark.slow
def test_a_killed_conversion_to_the_hub_goes_on(hub, repository, tmp_path):
    url = f"hf://datasets/{repository}/set"
    options = ("--shard-size", "1KiB", "--split", "train=0.8", "--split", "test=0.2")
    assert run_shardkit("convert", tmp_path / "raw", tmp_path / "near", *options).returncode == 0
    ended = []
    for num_commits in (1, 2, 3):
        tell(hub)
        command = [sys.executable, "-m", "shardkit", "convert", str(tmp_path / "raw"), url, *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seen = 0
        while process.poll() is None and seen < num_commits:
            seen += len([line for line in tell(hub) if "/commit/" in line])
        process.kill()
        ended.append(process.wait())
    assert ended[0] == -signal.SIGKILL
    done = run_shardkit("convert", tmp_path / "raw", url, *options)
    assert done.returncode == 0, done.stderr
    assert run_shardkit("verify", url).returncode == 0
    near = {p.name: p.read_bytes() for p in (tmp_path / "near").rglob("*.tfrecord.gz")}
    far = {path.rpartition("/")[2]: storage.read_bytes(path) for path, *_ in objects.list_objects(url)}
    assert {name: content for name, content in far.items() if name.endswith(".tfrecord.gz")} == near


def test_the_card_names_the_splits_and_datasets_reads_what_is_exported(hub, api, repository, tmp_path):
    api.create_repo(f"{repository}-own", repo_type="dataset")
    root = f"hf://datasets/{repository}-own"
    options = ("--split", "train=0.8", "--split", "test=0.2")
    assert convert(tmp_path / "raw", f"{root}/shards", *options)[0] == 0
    card = storage.read_bytes(f"{root}/README.md").decode()
    assert "path: shards/data/*/train-*" in card
    assert "reads no TFRecord" in card
    exported = run_shardkit("export-data", f"{root}/shards", f"{root}/parquet", "--to", "parquet")
    assert exported.returncode == 0, exported.stderr
    assert "path: parquet/test-*.parquet" in storage.read_bytes(f"{root}/README.md").decode()
    code = (
        "import sys; from datasets import load_dataset; found = load_dataset(sys.argv[1]);"
        "print(sum(sum(found[split]['x']) for split in ('train', 'test')))"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, f"{repository}-own"], env=environment, capture_output=True, text=True, check=False
    )
    assert str(sum(range(NUM_FILES * 100))) in done.stdout, done.stderr
    for folder, kind in (("more", "csv"), ("more", "csv"), ("parquet", "parquet")):
        again = run_shardkit("export-data", f"{root}/shards", f"{root}/{folder}", "--to", kind, "--split", "test")
        assert again.returncode == (4 if folder == "parquet" else 0), again.stderr
    card = storage.read_bytes(f"{root}/README.md").decode()
    configs = yaml.safe_load(card.split("---")[1])["configs"]
    assert [(c["config_name"], [f["path"] for f in c["data_files"]]) for c in configs] == [
        ("default", ["parquet/train-*.parquet", "parquet/test-*.parquet"]),
        ("more", ["more/test-*.csv"]),
    ]


def test_a_card_of_somebody_else_stays(hub, api, repository, tmp_path):
    replaced(api, repository, "README.md", b"# Mine\n")
    url = f"hf://datasets/{repository}/set"
    assert convert(tmp_path / "raw", url)[0] == 0
    assert run_shardkit("export-data", url, f"{url}-tables", "--to", "parquet").returncode == 0
    assert storage.read_bytes(f"hf://datasets/{repository}/README.md") == b"# Mine\n"


def test_a_dataset_may_be_the_repository_itself(hub, api, repository, tmp_path):
    api.create_repo(f"{repository}-root", repo_type="dataset")
    url = f"hf://datasets/{repository}-root"
    assert convert(tmp_path / "raw", url)[0] == 0
    assert convert(tmp_path / "raw", url, "--overwrite", "--seed", "2")[0] == 0
    for command in ("verify", "clean", "inspect"):
        assert run_shardkit(command, url).returncode == 0
    assert storage.exists(f"{url}/README.md")
