"""What a job on Dataflow is told and called, and how its workers get shardkit: decided without any service."""

from __future__ import annotations

import re
import zipfile

import msgspec
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.engines.dataflow.flags import refused_flag
from beam_pipelines.engines.dataflow.packaging import (
    PINNED,
    Launcher,
    Packaging,
    check_wheel_name,
    choose_packaging,
    extras_for,
    requirements,
)
from beam_pipelines.engines.dataflow.settings import (
    DATAFLOW,
    check_values,
    default_labels,
    job_name,
    legal_label,
    parse_labels,
    work_root_url,
)
from beam_pipelines.engines.dataflow.wheel import (
    check_kernel,
    declared_requirements,
    look_at_launcher,
    pinned_versions,
    stage_packages,
)
from beam_pipelines.engines.settings import EngineOptions, Facts, beam_flags, choose_settings, value_of
from shardkit._version import __version__
from shardkit.conversion import plan
from shardkit.conversion.plan import Recipe
from shardkit.errors import UsageError
from shardkit.sources.base import SourceOptions
from shardkit.transforms.options import TransformOptions

pytestmark = pytest.mark.full

FACTS = Facts(0, 40, {}, "gs://bucket/sets/Flights 2013", "0123456789abcdef" * 2)
PLACE = (("project", "my-project"), ("region", "europe-west1"), ("temp-location", "gs://bucket/tmp"))
HERE = Launcher("0.1.0", "3.11", None)
WHEEL = "shardkit-0.1.0-cp311-abi3-linux_x86_64.whl"
DECLARED = (
    "isal>=1.8,<2",
    "pillow>=11,<13",
    'apache-beam==2.77.*; extra == "beam"',
    'psutil>=7,<8; extra == "beam"',
    'gcsfs>=2026.2; extra == "gcs"',
    'tokenizers>=0.21,<1; extra == "text"',
)
VERSIONS = {"apache-beam": "2.77.0", "isal": "1.9.1", "pillow": "12.3.0", "tokenizers": "0.22.0", "zlib-ng": "1.1.0"}
RECIPE = Recipe(
    source=SourceOptions(format="csv"),
    splits=(),
    shuffle=True,
    seed=0,
    shard_bytes=1,
    num_shards=None,
    compression="gzip",
    compression_level="balanced",
)


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


def test_work_folders_lie_below_the_temp_location():
    assert work_root_url("gs://bucket/tmp/") == "gs://bucket/tmp/shardkit"


@pytest.mark.parametrize(
    ("image", "package", "launcher", "expected"),
    [
        ("docker.example/x:1", None, HERE._replace(origin="file:///src"), ("image", "docker.example/x:1")),
        (None, f"/w/{WHEEL}", HERE._replace(origin="file:///src"), ("wheel", f"/w/{WHEEL}")),
        (None, None, HERE, ("index", "0.1.0")),
        (None, None, HERE._replace(origin=f"file:///w%20x/{WHEEL}"), ("wheel", f"/w x/{WHEEL}")),
    ],
)
def test_how_workers_get_shardkit(image, package, launcher, expected):
    found = choose_packaging(image, package, launcher)
    assert (found.kind, found.what) == expected
    assert found.why
    assert found.what in found.describe()


@pytest.mark.parametrize(
    ("image", "package", "launcher", "message"),
    [
        ("a", "b.whl", HERE, "both given"),
        (None, None, HERE._replace(origin="file:///src"), "pip wheel --no-deps /src builds a wheel. Name a wheel with"),
        (None, None, HERE._replace(origin="https://w/s.zip"), "package=FILE.whl"),
        (None, "other-0.1.0-py3-none-any.whl", HERE, "is no wheel of shardkit"),
        (None, "shardkit-0.2.0-cp311-abi3-linux_x86_64.whl", HERE, "that has version 0.1.0"),
        (None, "shardkit-0.1.0-cp311-abi3-macosx_14_0_arm64.whl", HERE, "does not run on the workers"),
        (None, "shardkit-0.1.0-cp311-abi3-linux_aarch64.whl", HERE, "does not run on the workers"),
        (None, "shardkit-0.1.0-cp312-cp312-linux_x86_64.whl", HERE, "does not run on the workers"),
    ],
)
def test_a_shardkit_that_workers_cannot_have_is_refused(image, package, launcher, message):
    with pytest.raises(UsageError, match=message):
        choose_packaging(image, package, launcher)


@given(st.integers(11, 20))
def test_a_wheel_of_the_stable_interface_runs_on_every_later_python(minor):
    check_wheel_name("shardkit-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl", HERE._replace(python=f"3.{minor}"))


def test_workers_install_what_the_conversion_needs_in_the_versions_of_the_command():
    wheel, index = Packaging("wheel", f"/w/{WHEEL}", ""), Packaging("index", "0.1.0", "")
    assert requirements(wheel, ("beam", "gcs"), DECLARED, VERSIONS) == (
        "gcsfs>=2026.2",
        "psutil>=7,<8",
        "apache-beam==2.77.0",
        "isal==1.9.1",
        "pillow==12.3.0",
    )
    assert requirements(index, ("beam", "gcs", "text"), DECLARED, VERSIONS) == (
        "shardkit[beam,gcs,text]==0.1.0",
        "apache-beam==2.77.0",
        "isal==1.9.1",
        "pillow==12.3.0",
        "tokenizers==0.22.0",
    )
    assert requirements(Packaging("image", "x", ""), ("beam",), DECLARED, VERSIONS) == ()
    # Workers with others of these are refused when they begin.
    assert set(plan._MAKE_BYTES) <= set(PINNED)


def test_extras_follow_the_stores_and_the_recipe():
    assert extras_for(("gs://a/x", "gs://a/y"), RECIPE) == ("beam", "gcs")
    full = msgspec.structs.replace(
        RECIPE,
        source=SourceOptions(format="audio"),
        transforms=TransformOptions(select="SELECT 1", tokenize=(("a", "gs://b/t.json", "0"),)),
    )
    assert extras_for(("s3://a/x", "az://b/y"), full) == ("audio", "azure", "beam", "gcs", "s3", "sql", "text")


@pytest.mark.slow
def test_a_wheel_of_the_checkout_is_whole_and_for_workers(own_wheel, tmp_path):
    assert re.fullmatch(rf"shardkit-{re.escape(__version__)}-cp311-abi3-linux_x86_64\.whl", own_wheel.name)
    check_kernel(own_wheel)
    packaging = choose_packaging(None, str(own_wheel), look_at_launcher())
    by_wheel = requirements(packaging, ("beam", "gcs"), declared_requirements(packaging), pinned_versions())
    index = Packaging("index", __version__, "")
    own, *pins = requirements(index, ("beam", "gcs"), declared_requirements(index), pinned_versions())
    assert own == f"shardkit[beam,gcs]=={__version__}"
    assert set(pins) < set(by_wheel)
    flags = stage_packages(packaging, by_wheel, tmp_path)
    assert f"--extra_package={own_wheel}" in flags
    assert (tmp_path / "requirements.txt").read_text().splitlines() == list(by_wheel)


def test_a_wheel_without_the_kernel_is_refused(tmp_path):
    path = tmp_path / f"shardkit-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("shardkit/__init__.py", "")
    with pytest.raises(UsageError, match="has no compiled kernel"):
        check_kernel(path)
    path.write_bytes(b"no zip")
    with pytest.raises(UsageError, match="is no wheel"):
        check_kernel(path)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--requirements_file=r.txt", "--requirements_file cannot be given to Beam: shardkit writes"),
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
    found = refused_flag((flag,), has_image=False)
    assert found is None if message is None else re.search(message, str(found))


def test_an_image_installs_nothing_so_requirements_are_its_own_business():
    assert refused_flag(("--requirements_file", "r.txt"), has_image=True) is None
