"""Google Cloud Dataflow: settings, name and labels of a job. Pure: nothing of Beam is imported."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import xxhash

from beam_pipelines.engines.settings import (
    Chosen,
    EngineOptions,
    EngineSpec,
    Facts,
    Setting,
    choose_settings,
    flag_name,
    number_of,
    value_of,
)
from shardkit._version import __version__
from shardkit.errors import UsageError, missing_extra

# Why each flag is refused, and the next step.
REFUSED = {
    "dry_run": ("Beam would build the job and hand nothing over", "Give --dry-run before the --"),
    "job_name": ("shardkit looks for the job by its name", "Give --engine-option job-name=NAME"),
    "label": ("labels are checked before anything is read", "Give --engine-option labels=KEY=VALUE,KEY=VALUE"),
    "labels": ("labels are checked before anything is read", "Give --engine-option labels=KEY=VALUE,KEY=VALUE"),
    "streaming": ("a conversion is a batch job", "Leave it out"),
    "temp_location": ("plan and spool of the conversion lie there too", "Give --temp-location before the --"),
    "template_location": ("a template would be written, and no job run", "Leave it out"),
    "update": ("a batch job cannot be updated", "Leave it out"),
}
_PACKAGES = frozenset({"extra_package", "extra_packages", "requirements_file", "setup_file"})
_FILES = _PACKAGES | {"files_to_stage"}


PROJECT, REGION = "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_COMPUTE_REGION"
MAX_LABEL = 63
_MAX_JOB_NAME = 63
_MAX_WORKERS = 20
_SPLITS_A_WORKER = 8
_DISK_TYPES = "compute.googleapis.com/projects//zones//diskTypes/"
_PLACE_NAME = re.compile(r"[a-z][a-z0-9:.-]*")
_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_GOALS = {"cost": "COST_OPTIMIZED", "speed": "SPEED_OPTIMIZED"}


def legal_label(text: str) -> str:
    """Returns text as the value of a label may be: lower case, digits, `-` and `_`, at most 63 of them."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:MAX_LABEL].strip("-")


def dataset_of(destination: str) -> str:
    """Returns the name of a dataset, the last part of where it is."""
    return destination.rstrip("/").rsplit("/", 1)[-1]


def default_labels(destination: str) -> dict[str, str]:
    """Returns the labels of a job, by which its cost is found on the bill."""
    return {
        "shardkit-command": "convert",
        "shardkit-dataset": legal_label(dataset_of(destination)),
        "shardkit-version": legal_label(__version__),
    }


def parse_labels(text: str) -> dict[str, str]:
    """Returns the labels in `key=value,key=value`. Raises UsageError if one is not as Google wants it."""
    found: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, _, value = part.partition("=")
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise UsageError(
                f"{part!r} is no label",
                why=f"keys begin with a letter; both hold lower-case letters, digits, - and _, at most {MAX_LABEL}",
                next_step="Write it like --engine-option labels=team=data,stage=test",
            )
        if key in found:
            raise UsageError(f"the label {key} is given twice", next_step="Leave one of them out")
        found[key] = value
    return found


def job_name(destination: str, fingerprint: str) -> str:
    """Returns the name of the job of a conversion: Dataflow runs no two of one name at the same time.

    Args:
        destination: Of the dataset; two destinations give two names.
    """
    tail = f"{xxhash.xxh3_64_hexdigest(destination.encode())[:8]}-{fingerprint[:12]}"
    room = _MAX_JOB_NAME - len(f"shardkit--{tail}")
    name = re.sub(r"[^a-z0-9]+", "-", dataset_of(destination).lower())[:room].strip("-")
    return "-".join(part for part in ("shardkit", name, tail) if part).rstrip("-")


def work_root_url(temp_location: str) -> str:
    """Returns where the work folders of conversions on Dataflow are: workers share no disk, but this bucket."""
    return f"{temp_location.rstrip('/')}/shardkit"


def checked_settings(options: EngineOptions, facts: Facts) -> tuple[Chosen, ...]:
    """Returns every setting with its value.

    Raises:
        UsageError: If one is missing, is none of Dataflow's, or has a value that cannot be.
    """
    if (missing := needs_dataflow(options, facts)) is not None:
        raise missing
    chosen = choose_settings(DATAFLOW, "dataflow", options, facts)
    check_values(chosen)
    return chosen


def check_values(chosen: Sequence[Chosen]) -> None:
    """Checks values that Beam would refuse in its own words, or not at all. Raises UsageError if a value cannot be."""
    for key in ("max-workers", "threads", "disk-gb", "stuck-minutes", "stall-minutes", "poll-seconds", "lost-minutes"):
        number = number_of(chosen, key)
        if key in ("max-workers", "threads", "disk-gb", "stuck-minutes") and number != int(number):
            raise UsageError(f"--engine-option {key}={number} is no whole number", next_step=f"Write it like {key}=10")
    for key, words in (("public-ips", ("yes", "no")), ("flexrs", tuple(_GOALS))):
        if (value := value_of(chosen, key)) is not None and value not in words:
            raise UsageError(f"--engine-option {key}={value} is not known", next_step=f"Say {' or '.join(words)}")
    for key in ("project", "region"):
        if not _PLACE_NAME.fullmatch(value := value_of(chosen, key) or ""):
            raise UsageError(
                f"--{key} {value!r} is no name of a {key}",
                why="it begins with a letter and holds lower-case letters, digits and -",
                next_step="Write it as the console of Google Cloud shows it",
            )
    parse_labels(value_of(chosen, "labels") or "")
    if not _JOB_NAME.fullmatch(name := value_of(chosen, "job-name") or ""):
        raise UsageError(
            f"--engine-option job-name={name} is no name of a job",
            why="it begins with a letter, ends with a letter or digit, and holds those, in lower case, and -",
            next_step="Write it like job-name=flights-2013",
        )


def needs_dataflow(options: EngineOptions, facts: Facts) -> UsageError | None:
    """Returns the error that keeps a job from being handed over: no client, or an option that is missing."""
    typed = dict(options.values)
    for setting in _PLACE:
        if not (typed.get(setting.key) or setting.default(facts)):
            return UsageError(
                f"--runner dataflow needs --{setting.key}",
                why=f"it is {setting.meaning.partition(';')[0]}",
                next_step=f"Add --{setting.key} {_EXAMPLES[setting.key]}"
                + (f", or set {setting.shown[1:]}" if setting.shown else ""),
            )
    temp = typed["temp-location"]
    if not re.match(r"gs://[^/]+", temp):
        return UsageError(
            f"--temp-location {temp!r} is no folder of Google Cloud Storage",
            why="Dataflow takes the job, and its workers what they install, from there",
            next_step="Write it like --temp-location gs://bucket/tmp",
        )
    if (refused := refused_flag(options.flags)) is not None:
        return refused
    return None if has_client() else missing_extra("dataflow", "google-cloud-dataflow-client")


def has_client() -> bool:
    try:
        return importlib.util.find_spec("google.cloud.dataflow") is not None
    except ModuleNotFoundError:
        return False


def _constant(value: str | None) -> Callable[[Facts], str | None]:
    return lambda facts: value


def _max_workers(facts: Facts) -> str:
    return str(max(1, min(math.ceil(facts.num_input_splits / _SPLITS_A_WORKER), _MAX_WORKERS)))


def _labels(facts: Facts) -> str:
    return ",".join(f"{key}={value}" for key, value in default_labels(facts.destination).items())


def _spell_labels(value: str) -> tuple[str, ...]:
    return tuple(f"--labels={key}={text}" for key, text in parse_labels(value).items())


_EXAMPLES = {"project": "my-project", "region": "europe-west1", "temp-location": "gs://bucket/tmp"}
_PLACE = (
    Setting("project", "the project of Google Cloud that pays; the same as --project", "project",
            lambda f: f.environment.get(PROJECT), f"${PROJECT}", "as Google's own tools find it"),
    Setting("region", "where the workers are, best that of the buckets; the same as --region", "region",
            lambda f: f.environment.get(REGION), f"${REGION}", "as Google's own tools find it"),
    Setting("temp-location", "a folder of a bucket for the job, its packages and its intermediate files; the same as "
            "--temp-location", "temp_location", _constant(None)),
)  # fmt: skip

DATAFLOW = EngineSpec(
    runner="DataflowRunner",
    title="Google Cloud Dataflow",
    text=(
        "The job is handed over and goes on without this command, which watches it. Inputs, the dataset and "
        "--temp-location must be in stores that the workers can reach; they cannot see files of this machine.",
        "Workers get shardkit from an image (image), or by Beam's own flags after --: --extra_package takes a wheel, "
        "--requirements_file what else pip installs, from the index. Workers have the Python of this command; others "
        "than its versions of shardkit, isal, pillow, tokenizers and zlib-ng are refused there.",
        "Ctrl-C on a terminal asks whether to cancel the job: yes cancels it and waits for that, no leaves it running, "
        "and a second Ctrl-C leaves at once. Without a terminal, Ctrl-C and SIGTERM cancel it. SIGHUP, as when a "
        "terminal closes, leaves it running.",
        "What is staged stays in --temp-location, a few MB a job: a rule of the bucket may remove it after a month.",
        "--workers means nothing here: max-workers is the cap, threads what each process does at the same time. "
        "--storage-options stay on this machine.",
    ),
    settings=(
        *_PLACE,
        Setting("image", "an image with shardkit in it, made by beam_pipelines/Dockerfile", "sdk_container_image",
                _constant(None), "none", "workers that start from an image install nothing"),
        Setting("machine-type", "of the workers", "machine_type", _constant("n2-standard-4"), "n2-standard-4",
                "reading and compressing take processors; 4 GB for each of them is plenty"),
        Setting("max-workers", "the cap of workers, and of what the job costs an hour", "max_num_workers",
                _max_workers, f"one for {_SPLITS_A_WORKER} parts of the inputs, {_MAX_WORKERS} at most",
                "more would find no work, or cost more than expected"),
        Setting("threads", "pieces of work at the same time in each process, of which there is one a processor",
                "number_of_worker_harness_threads", _constant("2"), "2",
                "each holds a group of up to 256 MiB; Beam's own 12 would hold 12"),
        Setting("disk-gb", "of each worker", "disk_size_gb", _constant("100"), "100",
                "writers build shards there; Dataflow's own 25 GB fill up"),
        Setting("disk-type", "of that disk: pd-ssd, pd-balanced or pd-standard", "disk_type", _constant("pd-ssd"),
                "pd-ssd", "every shard is written and read once",
                lambda value: (f"--disk_type={value if '/' in value else _DISK_TYPES + value}",)),
        Setting("autoscaling", "THROUGHPUT_BASED or NONE", "autoscaling_algorithm", _constant("THROUGHPUT_BASED"),
                "THROUGHPUT_BASED", "few workers while inputs are listed and committed, many in between"),
        Setting("stuck-minutes", "a worker that works so long at one element begins anew",
                "element_processing_timeout_minutes", _constant("60"), "60",
                "it would else be paid for without end; the largest group takes a few minutes"),
        Setting("stall-minutes", "cancel the job when it runs and nothing is counted for so long", None,
                _constant("120"), "120", "twice stuck-minutes, so that Dataflow may mend it first"),
        Setting("poll-seconds", "between two looks at the job", None, _constant("20"), "20",
                "each look is two requests of a quota"),
        Setting("lost-minutes", "leave when Dataflow has not answered for so long; the job goes on", None,
                _constant("10"), "10", "shorter outages pass by themselves"),
        Setting("public-ips", "yes or no: whether workers have addresses in the Internet; without, they "
                "install nothing unless the network has a way out, so give an image",
                "use_public_ips", _constant(None), "yes, as Dataflow itself",
                spell=lambda value: ("--use_public_ips" if value == "yes" else "--no_use_public_ips",)),
        Setting("network", "that the workers are in", "network", _constant(None)),
        Setting("subnetwork", "such as regions/europe-west1/subnetworks/data", "subnetwork", _constant(None)),
        Setting("service-account", "that the workers act as; it reads the inputs and writes the dataset",
                "service_account_email", _constant(None), "that of the project"),
        Setting("flexrs", "cost or speed: cost may begin hours later, for less", "flexrs_goal", _constant(None),
                spell=lambda value: (f"--flexrs_goal={_GOALS.get(value, value)}",)),
        Setting("labels", "of the job, KEY=VALUE,KEY=VALUE, beside those of command, dataset and version", "labels",
                _labels, "these alone", "the bill can be split by them", _spell_labels),
        Setting("job-name", "of which no two run at the same time", "job_name",
                lambda f: job_name(f.destination, f.fingerprint), "made of destination and fingerprint",
                "the same conversion is not paid for twice at the same time"),
    ),
    needs=needs_dataflow,
    extra="dataflow",
    examples=(
        "shardkit convert 'gs://bucket/raw/*.csv' gs://bucket/flights --runner dataflow --project my-project "
        "--region europe-west1 --temp-location gs://bucket/tmp -- --extra_package "
        f"shardkit-{__version__}-cp311-abi3-linux_x86_64.whl --requirements_file requirements.txt "
        "--requirements_cache skip",
        "shardkit convert gs://bucket/raw gs://bucket/flights --runner dataflow --project my-project --region "
        "europe-west1 --temp-location gs://bucket/tmp --engine-option image=europe-docker.pkg.dev/my-project/beam/"
        "shardkit:0.1.0 --engine-option max-workers=50",
    ),
)  # fmt: skip


def check_packages(options: EngineOptions) -> None:
    """Checks that workers start from a user's image, or install something.

    Raises:
        UsageError: If they do neither, so that they would have no shardkit.
    """
    names = {flag_name(flag) for flag in options.flags}
    if dict(options.values).get("image") or names & (_PACKAGES | {"sdk_container_image"}):
        return
    raise UsageError(
        "no option says how the workers of Dataflow get shardkit",
        why=f"they need shardkit {__version__} and its dependencies, in the versions of this command",
        state="Nothing was read or handed over",
        next_step="Build a wheel: pip wheel --no-deps . in a checkout, else pip wheel --no-deps shardkit"
        f"=={__version__}. Write shardkit[gcs]=={__version__} to requirements.txt. Add to the end of the command: "
        f"-- --extra_package shardkit-{__version__}-*.whl --requirements_file requirements.txt --requirements_cache "
        "skip. Or give an image: --engine-option image=NAME",
    )


def refused_flag(flags: Sequence[str]) -> UsageError | None:
    """Returns the error for the first flag that a job may not have, None if there is none."""
    for flag, following in zip_longest(flags, flags[1:], fillvalue=""):
        name = flag_name(flag)
        typed, equals, value = flag.partition("=")
        if flag.startswith("--") and name in REFUSED:
            why, next_step = REFUSED[name]
            return UsageError(
                f"{typed} cannot be given to Beam",
                why=why,
                state="Nothing was read or handed over",
                next_step=next_step,
            )
        path = value if equals else following
        if flag.startswith("--") and name in _FILES and "://" not in path and not Path(path).is_file():
            return UsageError(
                f"{typed} names no file",
                where=path,
                state="Nothing was read or handed over",
                next_step="Correct its path",
            )
    return None
