"""What the doctor thinks of what was seen: verdicts, bounds of versions, the kernel, the machine."""

import sys
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.doctor import machine
from shardkit.doctor import store_guarantees as promises
from shardkit.doctor.installation import EXTRAS, inspect_installation, make_installation
from shardkit.doctor.kernel import check_kernel, find_differences
from shardkit.doctor.machine import GpuQuestion
from shardkit.doctor.store_guarantees import (
    PROMISES,
    Finding,
    Race,
    RangeTrial,
    give_verdict,
    judge_observations,
    judge_races,
    judge_ranges,
    not_checked,
    observe,
)
from shardkit.encoding import kernel_reference as reference
from shardkit.encoding.kernel import HAS_KERNEL
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_extra_that_a_user_may_want_is_shown():
    assert set(PROJECT["optional-dependencies"]) - set(EXTRAS) == {
        "all",
        "examples",
        "test",
        "bench",
        "dev",
        "dev-engines",
        "dev-frameworks",
        "dev-fuzz",
    }


def test_what_is_installed_is_looked_up():
    found = inspect_installation()
    versions = {package.name: package.version for package in found.core}
    assert versions["numpy"] == np.__version__
    assert found.problems == ()


def install(**versions):
    others = {"s3fs": ["fsspec==2026.9.0", 'aiohttp<1; python_version < "3"', 'x>9; extra == "y"']}
    return make_installation(
        "1.0",
        versions.pop("python", "3.11.7"),
        ">=3.11",
        ["numpy>=2.0,<2.5", 's3fs>=2026.2; extra == "s3"', 'torch>=2.6; extra == "torch"'],
        lambda name: versions.get(name),
        others if "s3fs" in versions else {},
    )


def test_packages_that_do_not_fit_are_named():
    assert install(numpy="2.4.1").problems == ()
    assert install(numpy="2.5.0").problems == ("numpy is 2.5.0, shardkit needs numpy>=2.0,<2.5",)
    assert install().problems == ("numpy is not installed, shardkit needs numpy>=2.0,<2.5",)
    assert install(numpy="2.0", s3fs="2025.1").problems == ("s3fs is 2025.1, shardkit[s3] needs s3fs>=2026.2",)
    assert install(numpy="2.0", s3fs="2026.9.0", fsspec="2026.2", aiohttp="3", x="1").problems == (
        "fsspec is 2026.2, s3fs needs fsspec==2026.9.0",
    )
    assert install(numpy="2.0", python="3.10.2").problems == ("Python is 3.10.2, shardkit needs >=3.11",)


def test_what_is_missing_is_offered():
    extras = {extra.name: extra for extra in install(numpy="2.0", s3fs="2026.9.0").extras}
    assert extras["s3"].is_installed
    assert not extras["torch"].is_installed
    assert extras["torch"].command == "pip install 'shardkit[torch]'"


def test_the_kernel_is_compared_with_the_reference():
    assert find_differences(reference) == []
    assert check_kernel().state == ("right" if HAS_KERNEL else "missing")


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("crc32c", lambda *args: 1, "checksums"),
        ("scan", lambda frames: reference.scan(frames[:-4]), "scanning"),
        ("decode", lambda f, s, n, specs: reference.decode(f, s[:-1], n[:-1], specs), "decoding"),
        ("permutation", lambda count, key: reference.permutation(count, key + 1), "ordering"),
        ("gather", lambda frames, starts, sizes: reference.gather(frames, starts[::-1], sizes[::-1]), "gathering"),
    ],
)
def test_a_kernel_that_computes_otherwise_is_found(name, wrong, said):
    right = {key: getattr(reference, key) for key in ("crc32c", "scan", "decode", "permutation", "gather")}
    assert find_differences(SimpleNamespace(**{**right, name: wrong})) == [said]
    del right[name]
    assert find_differences(SimpleNamespace(**right)) == [said]


def test_the_machine_is_looked_at():
    found = machine.inspect_machine()
    assert found.num_cores >= 1
    assert found.free_temporary_bytes > 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "names", "failure"),
    [
        ('print("noise"); print(\'["NVIDIA X"]\')', ("NVIDIA X",), None),
        ("print('[]')", (), None),
        (
            "import sys; print('a\\nImportError: no libcuda', file=sys.stderr); sys.exit(3)",
            (),
            "3: ImportError: no libcuda",
        ),
        ("import os; os.kill(os.getpid(), 11)", (), "-11: it said nothing"),
    ],
)
def test_what_another_process_says_of_gpus(code, names, failure):
    answer = GpuQuestion([sys.executable, "-c", code]).answer()
    assert (answer.was_asked, answer.names) == (True, names)
    assert (answer.failure or "").endswith(failure or "")
    assert (answer.failure is None) == (failure is None)


@pytest.mark.full
def test_a_question_that_is_forgotten_ends():
    question = GpuQuestion([sys.executable, "-c", "import threading; threading.Event().wait()"])
    question.forget()
    assert question._process.returncode is not None


races = st.builds(
    Race, st.just(8), st.lists(st.integers(0, 7), unique=True, max_size=8).map(tuple), st.none() | st.integers(-1, 7)
)


@given(st.lists(races, min_size=1, max_size=20))
def test_a_race_is_right_if_whoever_won_is_found(rounds):
    def is_right(race):
        if len(race.winners) == 1:
            return race.found == race.winners[0]
        return not race.winners and race.found is not None and race.found >= 0

    finding = judge_races("exclusive_create", rounds)
    assert finding.num_trials == len(rounds)
    assert finding.num_broken == sum(not is_right(race) for race in rounds)
    assert finding.state == ("broken" if finding.num_broken else "kept")


def test_an_answer_that_was_lost_is_no_fault_of_the_store():
    finding = judge_races("exclusive_create", [Race(8, (), 3), Race(8, (2,), 2)])
    assert (finding.state, finding.result) == ("kept", "8 writers, one winner in every round; 1 answer lost on the way")


@given(st.none() | st.binary(max_size=2), st.none() | st.binary(max_size=2), st.none() | st.binary(max_size=2))
def test_what_was_seen_is_right_only_if_it_is_equal(found, expected, before):
    assert (observe(found, expected, before) == "right") == (found == expected)


@pytest.mark.parametrize(
    ("found", "expected", "before", "observation"),
    [
        (b"a", b"a", None, "right"),
        (None, b"a", None, "missing"),
        (b"b", b"a", b"b", "old"),
        (b"c", b"a", b"b", "wrong"),
        (b"c", None, None, "seen"),
        (None, None, None, "right"),
    ],
)
def test_what_was_seen_has_a_word(found, expected, before, observation):
    assert observe(found, expected, before) == observation


@given(st.binary(min_size=1, max_size=20), st.integers(0, 19), st.integers(1, 30), st.none() | st.binary(max_size=30))
def test_a_range_is_right_only_if_every_byte_is(content, start, num_bytes, found):
    there = content[start : start + num_bytes]
    finding = judge_ranges("ranges", [RangeTrial(start, num_bytes, there, found)])
    goes_over = start + num_bytes > len(content)
    assert (finding.state == "kept") == (found == there or (found is None and goes_over))


def test_the_verdict_names_every_breach_and_each_advice_once():
    kept = judge_observations("read_after_write", ["right"] * 3, "fine")
    assert give_verdict([kept, not_checked("power_cut", "why")]).keeps_promises
    broken = [
        judge_observations("large_put", ["wrong"], ""),
        judge_races("exclusive_create", [Race(2, (0, 1), 1)]),
        judge_observations("refused_create", ["wrong", "right"], ""),
    ]
    verdict = give_verdict([kept, *broken])
    assert not verdict.keeps_promises
    assert verdict.sentences[0].startswith("Two writers both got the answer that they had won: concurrent conversions")
    assert len(verdict.sentences) == 5
    assert len(set(verdict.sentences)) == 5


@pytest.mark.parametrize("promise", sorted(set(PROMISES) - {"power_cut", "other_places"}))
def test_every_promise_that_can_be_broken_says_what_that_means(promise):
    finding = Finding(promise=promise, state="broken", num_trials=1, num_broken=1, result="")
    breach, advice = give_verdict([finding]).sentences
    assert breach == f"{promises.PROMISES[promise].breach}."
    assert len(advice) > 20
