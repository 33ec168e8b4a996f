"""The order of work, as a pure function."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardkit.conversion.plan import work_order
from shardkit.sources.base import ArchiveMember, InputSplit, RawFile


def member(path, name, start, compression):
    place = ArchiveMember(
        kind="tar", start=start, num_stored_bytes=1, archive_num_bytes=9, archive_compression=compression
    )
    return RawFile(path=path, name=name, num_bytes=1, version="1", member=place)


def plan(sizes, archives):
    """Returns splits and files: each file lies in one of several archives, or in none."""
    files = tuple(
        RawFile(path=f"/{i}", name=str(i), num_bytes=1, version="1")
        if archive is None
        else member(f"/{archive}.tar.gz", str(i), 512 * i, "gzip")
        for i, archive in enumerate(archives)
    )
    return [InputSplit(index=i, file_start=i, file_stop=i + 1, num_bytes=s) for i, s in enumerate(sizes)], files


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([None, "a", "b"]))))
def test_every_split_comes_once_the_largest_first_and_archives_in_their_own_order(items):
    splits, files = plan([size for size, _ in items], [archive for _, archive in items])
    ordered = work_order(splits, files)
    assert sorted(s.index for s in ordered) == list(range(len(items)))
    alone = [s.num_bytes for s in ordered if items[s.index][1] is None]
    assert alone == sorted(alone, reverse=True)
    for archive in ("a", "b"):
        places = [i for i, s in enumerate(ordered) if items[s.index][1] == archive]
        assert places == list(range(places[0], places[0] + len(places))) if places else True
        assert [ordered[i].index for i in places] == sorted(ordered[i].index for i in places)


def test_members_of_a_plain_tar_are_files_like_others():
    files = tuple(member("/a.tar", str(i), 512 * i, None) for i in range(3))
    splits = [InputSplit(index=i, file_start=i, file_stop=i + 1, num_bytes=n) for i, n in enumerate([1, 3, 2])]
    assert [s.index for s in work_order(splits, files)] == [1, 2, 0]
