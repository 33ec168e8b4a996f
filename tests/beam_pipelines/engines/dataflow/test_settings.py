"""Names and options of a job on Dataflow, decided without any service."""

from __future__ import annotations

import re

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.engines.dataflow.settings import (
    DATAFLOW,
    check_packages,
    check_values,
    default_labels,
    job_name,
    legal_label,
    parse_labels,
    refused_flag,
    work_root_url,
)
from beam_pipelines.engines.settings import EngineOptions, Facts, beam_flags, choose_settings, value_of
from shardkit._version import __version__
from shardkit.conversion import plan
from shardkit.errors import UsageError

pytestmark = pytest.mark.full

FACTS = Facts(0, 40, {}, "gs://bucket/sets/Flights 2013", "0123456789abcdef" * 2)
PLACE = (("project", "my-project"), ("region", "europe-west1"), ("temp-location", "gs://bucket/tmp"))


def chosen(*values, facts=FACTS):
    return choose_settings(DATAFLOW, "dataflow", EngineOptions(runner="dataflow", values=(*PLACE, *values)), facts)


def as_beam_sees(*values, typed=()):
    return PipelineOptions(beam_flags(DATAFLOW, chosen(*values), typed)).get_all_options()


def test_a_job_gets_suitable_settings():
    seen = as_beam_sees()
    assert (seen["runner"], seen["project"], seen["region"]) == ("DataflowRunner", "my-project", "europe-west1")
    assert (seen["temp_location"], seen["save_main_session"]) == ("gs://bucket/tmp", False)
    assert (seen["machine_type"], seen["max_num_workers"]) == ("n2-standard-4", 5)
    assert (seen["number_of_worker_harness_threads"], seen["disk_size_gb"]) == (2, 100)
    assert seen["disk_type"].endswith("/diskTypes/pd-ssd")
    assert (seen["autoscaling_algorithm"], seen["element_processing_timeout_minutes"]) == ("THROUGHPUT_BASED", 60)
    assert (seen["use_public_ips"], seen["flexrs_goal"], seen["sdk_container_image"]) == (None, None, None)
    assert seen["job_name"].startswith("shardkit-flights-2013-")
    assert "shardkit-dataset=flights-2013" in seen["labels"]


def test_settings_of_the_user_win():
    seen = as_beam_sees(
        ("public-ips", "no"),
        ("flexrs", "cost"),
        ("service-account", "w@p.iam.gserviceaccount.com"),
        ("subnetwork", "regions/europe-west1/subnetworks/data"),
        ("labels", "team=data, stage=test"),
        ("disk-type", "pd-balanced"),
        ("image", "docker.example/shardkit:1"),
        typed=("--machine_type=n2-highmem-8",),
    )
    assert (seen["use_public_ips"], seen["flexrs_goal"]) == (False, "COST_OPTIMIZED")
    assert seen["service_account_email"] == "w@p.iam.gserviceaccount.com"
    assert seen["subnetwork"] == "regions/europe-west1/subnetworks/data"
    assert seen["labels"] == ["team=data", "stage=test"]
    assert seen["disk_type"].endswith("/pd-balanced")
    assert (seen["sdk_container_image"], seen["machine_type"]) == ("docker.example/shardkit:1", "n2-highmem-8")


@given(st.integers(0, 10**7))
def test_the_cap_of_workers_follows_the_work(num_input_splits):
    cap = value_of(chosen(facts=FACTS._replace(num_input_splits=num_input_splits)), "max-workers")
    assert 1 <= int(cap or 0) <= min(20, max(1, num_input_splits))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("threads", "2.5"), "is no whole number"),
        (("max-workers", "many"), "is no positive number"),
        (("public-ips", "maybe"), "Say yes or no"),
        (("flexrs", "cheap"), "Say cost or speed"),
        (("labels", "Team=data"), "is no label"),
        (("job-name", "No_Name"), "is no name of a job"),
        (("labels", "team=" + "x" * 64), "is no label"),
    ],
)
def test_values_that_beam_cannot_parse_are_refused(value, message):
    with pytest.raises(UsageError, match=message):
        check_values(chosen(value))


@given(st.text())
def test_default_labels_are_legal_whatever_the_dataset_is_called(name):
    labels = default_labels(f"gs://bucket/{name}")
    assert parse_labels(",".join(f"{key}={value}" for key, value in labels.items())) == labels
    for key, value in labels.items():
        assert re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key)
        assert re.fullmatch(r"[a-z0-9_-]{0,63}", value)
    assert legal_label(legal_label(name)) == legal_label(name)


@given(st.text(), st.text(alphabet="0123456789abcdef", min_size=32, max_size=32))
def test_job_names_are_legal_and_tell_conversions_apart(name, fingerprint):
    found = job_name(f"gs://bucket/{name}", fingerprint)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", found)
    assert found == job_name(f"gs://bucket/{name}", fingerprint)
    assert found != job_name(f"gs://bucket/{name}/other", fingerprint)
    assert found != job_name(f"gs://bucket/{name}", fingerprint[::-1] + "0") or fingerprint[:12] == fingerprint[:-13:-1]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_option_is_named(missing):
    values = tuple(pair for i, pair in enumerate(PLACE) if i != missing)
    error = DATAFLOW.needs(EngineOptions(runner="dataflow", values=values), FACTS)
    assert error is not None
    assert f"needs --{PLACE[missing][0]}" in str(error)


def test_project_and_region_are_found_as_google_finds_them():
    found = {"GOOGLE_CLOUD_PROJECT": "p", "CLOUDSDK_COMPUTE_REGION": "r"}
    options = EngineOptions(runner="dataflow", values=PLACE[2:])
    assert DATAFLOW.needs(options, FACTS._replace(environment=found)) is None
    near = EngineOptions(runner="dataflow", values=(*PLACE[:2], ("temp-location", "/tmp")))
    assert "is no folder of Google Cloud Storage" in str(DATAFLOW.needs(near, FACTS))


def test_the_help_names_every_library_that_workers_must_have_in_the_same_version():
    assert all(name in " ".join(DATAFLOW.text) for name in plan._MAKE_BYTES)


def test_work_folders_lie_below_the_temp_location():
    assert work_root_url("gs://bucket/tmp/") == "gs://bucket/tmp/shardkit"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--requirements_file=r.txt", "--requirements_file names no file in r.txt"),
        ("--temp_location=gs://other/x", "--temp_location cannot be given to Beam"),
        ("--template_location=gs://b/t", "no job run"),
        ("--dry_run=True", "hand nothing over"),
        ("--streaming", "batch job"),
        ("--update", "cannot be updated"),
        ("--job_name=Bad_Name", "by its name"),
        ("--labels=Team=X", "labels are checked"),
        ("--setup_file=./nowhere.py", r"--setup_file names no file in \./nowhere\.py"),
        ("--extra_package=gs://b/p.whl", None),
        ("--region=europe-west1", None),
    ],
)
def test_flags_that_a_job_cannot_take_are_refused_before_anything_is_read(flag, message):
    found = refused_flag((flag,))
    assert found is None if message is None else re.search(message, str(found))


@pytest.mark.parametrize("typed", [("--machine_type=x",), ("--requirements_cache=skip",), ()])
def test_a_job_whose_workers_would_have_no_shardkit_is_refused(typed):
    with pytest.raises(UsageError) as found:
        check_packages(EngineOptions(values=PLACE, flags=typed))
    for words in (
        f"shardkit {__version__} and its dependencies",
        "Nothing was read or handed over",
        "pip wheel --no-deps .",
        f"pip wheel --no-deps shardkit=={__version__}",
        f"-- --extra_package shardkit-{__version__}-*.whl --requirements_file requirements.txt",
        "--engine-option image=NAME",
    ):
        assert words in str(found.value)


@pytest.mark.parametrize(
    "flags",
    [
        ("--extra_package=shardkit.whl",),
        ("--extra_packages", "shardkit.whl"),
        ("--requirements_file=r.txt", "--requirements_cache=skip"),
        ("--setup_file", "./setup.py"),
        ("--sdk_container_image=docker.example/shardkit:1",),
    ],
)
def test_flags_of_beam_that_bring_shardkit_are_taken(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("shardkit.whl", "r.txt", "setup.py"):
        (tmp_path / name).touch()
    options = EngineOptions(values=PLACE, flags=flags)
    check_packages(options)
    assert DATAFLOW.needs(options, FACTS) is None
    assert beam_flags(DATAFLOW, chosen(), flags)[-len(flags) :] == list(flags)
