"""Disk space: what a conversion needs is known before it begins, and a full disk ends it cleanly at any step."""

import bz2
import gzip
import lzma
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.conversion.plan import save_plan
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.space.disk_space import estimate_sizes, space_needs
from shardkit.conversion.space.size_sample import measure_expansion
from shardkit.conversion.work_folder import work_folder
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.transforms.options import TransformOptions
from tests.support.campaign import in_campaign

NUM_FILES, NUM_ROWS, NUM_SHARDS = 6, 20_000, 8


def lines_of(number):
    rng = np.random.default_rng(number)
    return [f"{i},{v:.4f},word{v * 1000:.0f}" for i, v in enumerate(rng.random(NUM_ROWS))]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for number in range(NUM_FILES):
        (folder / f"{number}.csv").write_text("\n".join(["id,x,word", *lines_of(number)]) + "\n")
    return folder


@pytest.fixture(scope="module")
def clean(tables, tmp_path_factory):
    destination = tmp_path_factory.mktemp("clean") / "out"
    run = subprocess.run(command(tables, destination), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return destination


def command(tables, destination, *options):
    return [
        *(sys.executable, "-m", "shardkit", "convert", str(tables), str(destination)),
        *("--num-shards", str(NUM_SHARDS), *options),
    ]


def shards_of(destination):
    return {s.path: s.sha256 for s in open_dataset(str(destination)).shards}


def plan_of(inputs, destination, **options):
    return prepare(ConvertRequest(inputs=(str(inputs),), destination=str(destination), **options)).plan


def needed_bytes(tables, tmp_path, **options):
    plan = plan_of(tables, tmp_path / "estimated", num_shards=NUM_SHARDS, **options)
    (need,) = space_needs(plan)
    return need.num_bytes


def held_bytes(folder):
    return sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())


def as_gzip(tables, folder):
    for path in tables.iterdir():
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))


def as_parquet(tables, folder):
    for number, _ in enumerate(tables.iterdir()):
        ids, x, words = zip(*(line.split(",") for line in lines_of(number)), strict=True)
        columns = {"id": pa.array(map(int, ids)), "x": pa.array(map(float, x)), "word": pa.array(words)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=5000)


def as_csv(tables, folder):
    for path in tables.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())


def as_files(tables, folder):
    rng = np.random.default_rng(0)
    for number in range(300):
        (folder / f"{number}.txt").write_text(" ".join(map(str, rng.integers(0, 10**6, 2000))))


@pytest.mark.full
@pytest.mark.parametrize("write", [as_csv, as_gzip, as_parquet, as_files])
def test_what_is_needed_is_known_before_to_a_tenth(tables, tmp_path, write):
    from shardkit.conversion.run.local import run_local

    (tmp_path / "in").mkdir()
    write(tables, tmp_path / "in")
    source = SourceOptions(text_record="file") if write is as_files else SourceOptions()
    dedup = None if write is as_files else ()
    plan = plan_of(tmp_path / "in", tmp_path / "out", source=source, dedup=dedup)
    sizes = estimate_sizes(plan)
    with work_folder(plan):
        run_local(save_plan(plan), 2, on_lost_worker=pytest.fail)
        assert sizes.spool == pytest.approx(held_bytes(plan.work_path("spool")), rel=0.1)
        # Duplicates are not known before.
        assert sizes.first_pass == pytest.approx(held_bytes(plan.work_path("survey")), rel=0.3)
        assert sizes.shards == pytest.approx(held_bytes(tmp_path / "out" / plan.data_path), rel=0.15)
        # When all is there, little but the manifest is needed any more.
        (rest,) = space_needs(plan)
        assert rest.is_rest
        assert rest.num_bytes - sizes.manifest <= 0.15 * sizes.shards


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.csv.gz", gzip.compress),
        ("members.csv.gz", lambda raw: gzip.compress(raw[: len(raw) // 2]) + gzip.compress(raw[len(raw) // 2 :])),
        ("a.csv.bz2", bz2.compress),
        ("a.csv.xz", lzma.compress),
        ("a.csv.zst", lambda raw: pa.Codec("zstd").compress(raw, asbytes=True)),
    ],
)
def test_what_compressed_files_become_is_measured(tmp_path, name, compress):
    raw = "\n".join(["id,x,word", *lines_of(0), *lines_of(1)]).encode()
    (tmp_path / name).write_bytes(compress(raw))
    (file,) = list_inputs((str(tmp_path / name),), SourceOptions()).files
    assert file.num_bytes * measure_expansion(file) == pytest.approx(len(raw), rel=0.1)


def run_on_small_disk(tmp_path, arguments, *, size, inodes="0", work_dir=None):
    """Converts into a file system of its own, and again when it has become larger; returns both runs and a copy."""
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no user namespaces here")
    mount, copy = tmp_path / "small", tmp_path / "copy"
    mount.mkdir()
    source, *options = arguments
    if work_dir is not None:
        options += ["--work-dir", str(work_dir)]
    convert = " ".join(command(source, mount / "out", *options))
    script = f"""
        mount -t tmpfs -o size={size},nr_inodes={inodes} tmpfs {mount} || exit 99
        {convert} 2>{tmp_path}/first.err; echo $? >{tmp_path}/first.code
        cp -r {mount}/out {tmp_path}/cut
        mount -o remount,size=1g,nr_inodes=0 {mount} || exit 99
        {convert} 2>{tmp_path}/second.err; echo $? >{tmp_path}/second.code
        cp -r {mount}/out {copy}
    """
    run = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    code = int((tmp_path / "first.code").read_text())
    first, second = (tmp_path / "first.err").read_text(), (tmp_path / "second.err").read_text()
    assert int((tmp_path / "second.code").read_text()) == 0, second
    return code, first, second, copy


@pytest.fixture
def uneven(tmp_path):
    """A table of which one stretch becomes far less than the others; its splits are 8 MiB."""
    folder = tmp_path / "uneven"
    folder.mkdir()
    with (folder / "a.csv").open("w") as file:
        file.write("id,x,word\n")
        for number in range(30):
            rng = np.random.default_rng(number)
            few = "\n".join(f"{i},{i}.5,{' ' * 200}word" for i in range(4_700))
            many = "\n".join(f"{i},{v:.9f},{v * 10**9:.0f}" for i, v in enumerate(rng.random(32_000)))
            file.write((few if number < 10 else many) + "\n")
    return folder


@pytest.mark.parametrize(("share", "fit"), [(0.45, "no"), (0.55, "perhaps"), (1.05, "perhaps"), (1.15, "yes")])
def test_too_little_space_is_distinguished_from_perhaps_too_little(tables, tmp_path, share, fit):
    plan = plan_of(tables, tmp_path / "out", num_shards=NUM_SHARDS)
    (need,) = space_needs(plan)
    assert need._replace(num_free_bytes=int(need.num_bytes * share)).fit == fit


@pytest.mark.full
@pytest.mark.parametrize("doubt", ["duplicates", "a transformation", "uneven inputs"])
def test_what_may_yet_become_less_is_never_sure_not_to_fit(tables, uneven, tmp_path, doubt):
    options, share = {
        "duplicates": ({"dedup": ()}, 0.1),
        "a transformation": ({"transforms": TransformOptions(drop_null=("*",))}, 0.1),
        "uneven inputs": ({}, 0.6),
    }[doubt]
    plan = plan_of(uneven if doubt == "uneven inputs" else tables, tmp_path / "out", num_shards=NUM_SHARDS, **options)
    (need,) = space_needs(plan)
    assert need._replace(num_free_bytes=int(need.num_bytes * share)).fit == "perhaps"


def check_clean_end(code, message):
    assert code == 6, message
    assert "error[SK-E600]" in message
    assert "Nothing was committed" in message
    assert "Traceback" not in message


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("share", [0.45, *in_campaign(0.33)])
def test_too_little_is_refused_before_any_work(tables, tmp_path, share):
    needed = needed_bytes(tables, tmp_path)
    code, message, second, _ = run_on_small_disk(tmp_path, [tables], size=int(needed * share))
    check_clean_end(code, message)
    assert "for the spool" in message
    assert "free" in message
    assert "--work-dir" in message
    assert str(tmp_path / "small") in message
    assert not (tmp_path / "cut").exists()
    assert "Going on" not in second


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("share", [0.6, *in_campaign(0.97)])
@pytest.mark.parametrize(
    # What transformations leave of the rows is not known before, so that too little is tried.
    "options",
    [
        ("--cast", "x=float32", "--workers", "6"),
        *in_campaign((("--dedup",),), (("--cast", "x=float32", "--workers", "2"),)),
    ],
    ids=" ".join,
)
def test_a_disk_that_fills_up_ends_it_cleanly_and_more_space_finishes_it(tables, clean, tmp_path, share, options):
    needed = needed_bytes(tables, tmp_path, dedup=() if "--dedup" in options else None)
    code, message, second, copy = run_on_small_disk(tmp_path, [tables, *options], size=int(needed * share))
    check_clean_end(code, message)
    assert "space may not suffice" in message
    assert "more needed" in message
    assert list_versions(str(tmp_path / "cut")) == []
    assert "Going on" in second
    if "--dedup" not in options:
        assert list(shards_of(copy).values()) == list(shards_of(clean).values())
    assert open_dataset(str(copy)).manifest.accounting.num_rows == NUM_FILES * NUM_ROWS
    assert not (copy / "work").exists()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(("more_pages", "what"), [(0, ".shards.parquet"), (1, ".json")], ids=["table", "manifest"])
def test_a_disk_that_is_full_at_the_commit_shows_no_dataset(tables, clean, tmp_path, more_pages, what):
    pages = sum(-(-p.stat().st_size // 4096) for p in (clean / "data").rglob("*") if p.is_file())
    code, message, _, copy = run_on_small_disk(
        tmp_path, [tables], size=4096 * (pages + more_pages), work_dir=tmp_path / "work"
    )
    check_clean_end(code, message)
    assert re.search(rf"manifests/00000001(-[0-9a-f]{{16}})?{re.escape(what)}", message)
    assert "for the manifest" in message
    assert "more needed, 0 B free" in message
    assert "another destination" in message
    assert list_versions(str(tmp_path / "cut")) == []
    assert [p.name for p in (tmp_path / "cut" / "manifests").glob(".*")] == [], "half a file takes space for nothing"
    assert shards_of(copy) == shards_of(clean)


@pytest.mark.full
@pytest.mark.slow
def test_a_disk_that_fills_up_with_rejected_rows_keeps_none_twice(tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    # The head of every file is sound, so that nothing warns before.
    for number in range(4):
        rows = [f"{i},{i}" for i in range(30_000)] + [f"{i},{'x' * 900},1" for i in range(5_000)]
        (folder / f"{number}.csv").write_text("\n".join(["id,n", *rows]) + "\n")
    arguments = [folder, "--on-bad-record", "quarantine", "--max-bad", "20%"]
    code, message, _, copy = run_on_small_disk(tmp_path, arguments, size=14 << 20)
    check_clean_end(code, message)
    accounting = open_dataset(str(copy)).manifest.accounting
    assert (accounting.num_rows, accounting.num_rejected) == (140_000, 20_000)
    assert sum(f.num_rows for f in accounting.rejected_files) == 20_000


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("inodes", [9, *in_campaign(24)])
def test_a_disk_that_takes_no_more_files_is_no_bug(tables, clean, tmp_path, inodes):
    code, message, _, copy = run_on_small_disk(tmp_path, [tables], size="1g", inodes=str(inodes))
    check_clean_end(code, message)
    assert "no inodes left" in message
    assert shards_of(copy) == shards_of(clean)
