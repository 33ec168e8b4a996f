"""The forecast: adds up from 1 KB to 1 EB, and what it says to set instead does away with the limit."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.conversion.engines import ENGINES
from shardkit.conversion.layout_math import MAX_GROUPS, choose_group_bytes
from shardkit.conversion.option_forms import SplitShare
from shardkit.conversion.rows.small_files import group_small_files
from shardkit.forecast.estimate import carries_bytes, forecast, part_of
from shardkit.forecast.limit_checks import clear, find
from shardkit.forecast.limits import RECORD, SHARDS
from shardkit.forecast.values import Setting, Workload
from shardkit.sources.base import InputSplit, RawFile, choose_split_bytes, count_splits
from shardkit.units import GiB, KiB, MiB
from tests.support.examples import draws

EB = 10**18
NOTHING_HELPS = "No number of datasets is enough"
SHARES = [
    (SplitShare(name="train", fraction=1.0),),
    (SplitShare(name="train", fraction=0.9), SplitShare(name="test", fraction=0.1)),
    (SplitShare(name="a", fraction=0.98), SplitShare(name="b", fraction=0.01), SplitShare(name="c", fraction=0.01)),
]
sizes = st.floats(3, 18).map(lambda e: int(10**e))


@st.composite
def workloads(draw):
    num_bytes = draw(sizes)
    row_bytes = draw(st.sampled_from([40, 1000, 20_000, 2_000_000]))
    num_rows = max(1, num_bytes // row_bytes)
    framed = max(num_rows, int(num_bytes * draw(st.sampled_from([0.3, 1.0, 4.0]))))
    return Workload(
        num_bytes=num_bytes,
        num_files=draw(st.sampled_from([1, 7, 1000, 10**9]).map(lambda n: min(n, num_bytes))),
        num_rows=num_rows,
        num_framed_bytes=framed,
        ratio=draw(st.sampled_from([1.0, 2.0, 6.5])),
        max_record_bytes=-(-framed // num_rows),
        num_features=draw(st.sampled_from([1, 20, 3000])),
        is_cut=draw(st.booleans()),
        shares=draw(st.sampled_from(SHARES)),
    )


worker_settings = st.builds(
    Setting,
    engine=st.sampled_from(tuple(ENGINES)),
    num_workers=st.sampled_from([1, 2, 16, 1024, 9000]),
    worker_memory_bytes=st.sampled_from([GiB, 4 * GiB, 64 * GiB]),
    disk_bytes=st.sampled_from([None, 10 * GiB, 2000 * GiB]),
    shard_bytes=st.sampled_from([KiB, MiB, 128 * MiB, 4 * GiB]),
    num_shards=st.sampled_from([None, None, 1, 40, 3_000_000]),
    compression=st.sampled_from(["gzip", "none"]),
    shuffle=st.booleans(),
    store=st.sampled_from(["local", "s3", "gs", "az"]),
    work_place=st.sampled_from(["default", "folder", "store"]),
)


@settings(max_examples=draws(60), deadline=None)
@given(workloads(), worker_settings)
def test_the_splits_add_up_to_the_whole(workload, setting):
    estimated = forecast(workload, setting)
    assert sum(s.num_examples for s in estimated.splits) == workload.num_rows
    assert sum(s.num_framed_bytes for s in estimated.splits) == workload.num_framed_bytes
    for split in estimated.splits:
        assert 1 <= split.num_shards <= split.num_examples
        assert 1 <= split.num_units <= split.num_shards
        assert split.num_groups >= 1
        assert split.num_groups * split.max_group_bytes >= 0.9 * split.num_framed_bytes
    assert estimated.num_runs >= estimated.num_input_splits >= 1
    assert estimated.num_segments >= len(estimated.splits)
    assert min(msgspec.structs.astuple(estimated)[1:]) >= 0
    if not carries_bytes(setting):
        assert estimated.spool_bytes > workload.num_framed_bytes
    if setting.engine == "local" and setting.store == "local" and setting.work_place != "store":
        assert estimated.disk_bytes == estimated.spool_bytes + estimated.num_bytes


@settings(max_examples=draws(60), deadline=None)
@given(workloads(), worker_settings, st.integers(1, 50))
def test_twice_as_much_never_needs_less(workload, setting, times):
    more = msgspec.structs.replace(
        workload,
        num_bytes=workload.num_bytes * times,
        num_files=workload.num_files * times,
        num_rows=workload.num_rows * times,
        num_framed_bytes=workload.num_framed_bytes * times,
        shares=SHARES[0],
    )
    less = msgspec.structs.replace(workload, shares=SHARES[0])
    if more.num_framed_bytes > 4 * EB or more.num_bytes > EB:
        return
    small, large = forecast(less, setting), forecast(more, setting)
    for name in ("num_shards", "num_bytes", "num_put_requests", "table_bytes", "manifest_bytes"):
        assert getattr(large, name) >= getattr(small, name), name
    for name in ("spool_bytes", "shuffle_bytes", "num_input_requests", "num_runs"):
        # Small files that are read together fill their runs better.
        assert getattr(large, name) >= 0.9 * getattr(small, name), name
    # A disk holds a shard while it grows, and more data divides into shards that are smaller, to the size wanted; the
    # records of some shards too, where they come through the shuffle.
    if not carries_bytes(setting):
        assert large.disk_bytes - large.shard_bytes >= 0.9 * (small.disk_bytes - small.shard_bytes)


@settings(max_examples=draws(60), deadline=None)
@given(workloads(), worker_settings)
def test_what_to_set_instead_does_away_with_the_limit(workload, setting):
    estimated = forecast(workload, setting)
    for finding in find(workload, setting, estimated):
        assert finding.next_step
        assert finding.needed != finding.limit
        assert finding.source
        if finding.source == RECORD.source or finding.next_step.startswith(NOTHING_HELPS):
            assert finding.setting == setting, finding
            continue
        assert finding.setting != setting, finding
        after = find(workload, finding.setting, forecast(workload, finding.setting))
        assert finding.what not in {f.what for f in after}, finding
    cleared, estimated = clear(workload, setting)
    for finding in find(workload, cleared, estimated):
        assert finding.source == RECORD.source or finding.next_step.startswith(NOTHING_HELPS), finding


@settings(max_examples=draws(80), deadline=None)
@given(workloads(), worker_settings, st.sampled_from([1, 3, 5000]))
def test_there_are_never_more_datasets_advised_than_files_that_stay_whole_or_rows(workload, setting, num_datasets):
    setting = msgspec.structs.replace(setting, num_datasets=num_datasets)
    most = workload.num_rows if workload.is_cut else min(workload.num_rows, workload.num_files)
    found = find(workload, setting, forecast(workload, setting))
    assert (num_datasets > most) == ("the inputs cannot be cut into so many datasets" in {f.what for f in found})
    cleared, estimated = clear(workload, setting)
    for advised in (cleared, *(f.setting for f in found if f.setting != setting and f.setting.num_datasets > 1)):
        assert advised.num_datasets <= max(most, num_datasets)
    if find(workload, cleared, estimated):
        return
    assert cleared.num_datasets <= most
    # What a user who follows the advice has before them then: one of the parts, as a workload of its own.
    part = part_of(workload, cleared.num_datasets)
    alone = msgspec.structs.replace(cleared, num_datasets=1)
    assert [f for f in find(part, alone, forecast(part, alone)) if f.is_fatal] == []
    if not workload.is_cut:
        assert part.num_files * cleared.num_datasets >= workload.num_files
        assert part.num_rows >= workload.num_rows * part.num_files // workload.num_files


@settings(max_examples=draws(80), deadline=None)
@given(workloads(), worker_settings)
def test_where_no_number_of_datasets_is_said_to_be_enough_not_even_the_largest_is(workload, setting):
    most = workload.num_rows if workload.is_cut else min(workload.num_rows, workload.num_files)
    for finding in find(workload, setting, forecast(workload, setting)):
        if finding.next_step.startswith(NOTHING_HELPS):
            parts = msgspec.structs.replace(setting, num_datasets=min(most, max(1, workload.num_framed_bytes // MiB)))
            assert finding.what in {f.what for f in find(workload, parts, forecast(workload, parts))}


@settings(max_examples=draws(30), deadline=None)
@given(workloads(), worker_settings)
def test_advice_takes_few_forecasts(workload, setting):
    # A forecast takes less than a millisecond, and `plan` answers at once. Of 1,500 drawn, none took more than 65.
    forecast.cache_clear()
    find(workload, setting, forecast(workload, setting))
    assert forecast.cache_info().misses <= 200


def test_a_disk_holds_no_more_shards_at_the_same_time_than_there_are():
    workload = Workload(num_bytes=10**7, num_rows=10**4, num_framed_bytes=10**7, max_record_bytes=1000)
    few, many = (forecast(workload, Setting(num_workers=number, store="s3", compression="none")) for number in (1, 16))
    assert few.num_shards == 1
    assert few.disk_bytes == many.disk_bytes
    dataflow = forecast(workload, Setting(engine="dataflow", store="gs", compression="none"))
    assert dataflow.disk_bytes < 3 * workload.num_framed_bytes


def test_a_size_just_above_its_limit_is_reported_to_the_byte():
    workload = Workload(num_bytes=10**9, num_rows=10**6, num_framed_bytes=10**9, max_record_bytes=1000)
    setting = Setting(worker_memory_bytes=4 * GiB)
    memory = forecast(workload, setting).worker_bytes
    short = msgspec.structs.replace(setting, worker_memory_bytes=memory - 1)
    (finding,) = find(workload, short, forecast(workload, short))
    assert (finding.needed, finding.limit) == (f"{memory:,} bytes", f"{memory - 1:,} bytes")


def test_an_exabyte_is_never_one_dataset_and_a_gigabyte_always_is():
    def imagined(num_bytes):
        rows = max(1, num_bytes // 1000)
        return Workload(num_bytes=num_bytes, num_rows=rows, num_framed_bytes=num_bytes, max_record_bytes=1000)

    for engine in ENGINES:
        setting = Setting(engine=engine, worker_memory_bytes=16 * GiB, store="gs")
        findings = find(imagined(EB), setting, forecast(imagined(EB), setting))
        assert findings[0].is_fatal
        assert f"{SHARDS.value:,} shards" in {f.limit for f in findings}
        cleared, estimated = clear(imagined(EB), setting)
        assert cleared.num_datasets > 1000
        assert estimated.num_shards <= SHARDS.value
        assert find(imagined(10**9), setting, forecast(imagined(10**9), setting)) == ()


def test_a_larger_shard_is_advised_where_that_is_enough():
    workload = Workload(num_bytes=2 * 10**12, num_rows=10**8, num_framed_bytes=10**12, max_record_bytes=20_000)
    setting = Setting(shard_bytes=100 * KiB, worker_memory_bytes=256 * GiB)
    (finding,) = (f for f in find(workload, setting, forecast(workload, setting)) if "too many for one" in f.what)
    assert finding.next_step == "--shard-size 1MiB"
    assert forecast(workload, finding.setting).num_shards < SHARDS.value


def test_a_record_that_no_example_holds_is_fatal_whatever_is_set():
    workload = Workload(num_bytes=10**10, num_rows=3, num_framed_bytes=10**10, max_record_bytes=4 * 10**9)
    setting = Setting(worker_memory_bytes=256 * GiB)
    found = find(workload, setting, forecast(workload, setting))
    assert [f.what for f in found if f.source == RECORD.source] == ["one record is too large"]
    assert found[0].setting == setting


@given(st.integers(1, 10**13), st.integers(1, 5000))
def test_files_of_equal_size_are_put_together_as_the_conversion_does(num_bytes, num_files):
    file_bytes = -(-num_bytes // num_files)
    if count_splits(file_bytes) > 1:
        return
    file = RawFile(path="f", name="f", num_bytes=file_bytes, version="1")
    splits = [
        InputSplit(index=i, file_start=i, file_stop=i + 1, stop=file_bytes, num_bytes=file_bytes)
        for i in range(num_files)
    ]
    grouped = group_small_files(splits, [file] * num_files)
    workload = Workload(
        num_bytes=file_bytes * num_files,
        num_files=num_files,
        num_rows=num_files,
        num_framed_bytes=num_bytes + num_files,
        max_record_bytes=1,
    )
    assert forecast(workload, Setting()).num_input_splits == len(grouped)


@given(st.integers(0, 10**15))
def test_splits_of_a_file_are_of_the_wanted_size_but_for_the_last(num_bytes):
    count, wanted = count_splits(num_bytes), choose_split_bytes(num_bytes)
    assert (count - 1) * wanted <= num_bytes
    assert num_bytes <= (count + 0.25) * wanted


@given(st.integers(1, 4 * EB))
def test_there_are_never_more_groups_than_the_runner_can_hold_lines_for(num_bytes):
    assert -(-num_bytes // choose_group_bytes(num_bytes, shuffle=True)) <= MAX_GROUPS
