"""The Flex Template: its launcher writes a job that gives the local engine's bytes; metadata and image go with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from shardkit.storage import files as storage
from tests.support.engines import run_staged
from tests.support.engines.conversions import shards_of
from tests.support.engines.dataflow_bucket import PLACE
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

dataflow = pytest.importorskip("google.cloud.dataflow")

OPTIONS = '{"split": {"train": 0.7, "test": 0.3}, "num_shards": 8}'
METADATA = json.loads((ROOT / "beam_pipelines/template.json").read_text())
DOCKERFILE = (ROOT / "beam_pipelines/Dockerfile.template").read_text()


def launch(bucket, *, options=OPTIONS, inputs=None):
    """Runs the launcher as Dataflow does."""
    place = [f"{PLACE[i]}={PLACE[i + 1]}" for i in range(0, len(PLACE), 2)]
    command = [
        sys.executable, "-m", "beam_pipelines.engines.dataflow.template", f"--inputs={inputs or bucket.raw}",
        f"--destination={bucket.out}", f"--options={options}", "--runner=DataflowRunner", *place,
        f"--temp_location={bucket.temp}", "--job_name=flights-1", f"--template_location={bucket.temp}/job_object",
        f"--dataflow_endpoint={bucket.service.endpoint}", "--no_auth",
    ]  # fmt: skip
    environment = {**bucket.environment, "SHARDKIT_IMAGE": "docker.example/shardkit:1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)


@pytest.mark.slow
def test_the_job_that_it_writes_gives_the_bytes_of_the_local_engine(bucket, service, inputs, clean, tmp_path):
    from tests.support.engines.fake_dataflow import check_job

    for path in inputs.iterdir():
        storage.put_file(path, f"{bucket.url}/many/{path.name}")
    done = launch(bucket, inputs=f"{bucket.url}/many/0[0-3].csv,{bucket.url}/many/0[4-7].csv")
    assert done.returncode == 0, done.stderr
    assert service.num_submitted == 0, "Dataflow starts the job"
    job = json.loads(storage.read_bytes(f"{bucket.temp}/job_object"))
    check_job(job | {"type": dataflow.JobType[job["type"]]})
    assert job["name"] == "flights-1"
    (pool,) = job["environment"]["workerPools"]
    assert {i["containerImage"] for i in pool["sdkHarnessContainerImages"]} == {"docker.example/shardkit:1"}
    staged = tmp_path / "pipeline.pb"
    staged.write_bytes(storage.read_bytes(job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]))
    run = [sys.executable, run_staged.__file__, str(staged), str(tmp_path / "counters.json")]
    worked = subprocess.run(run, capture_output=True, text=True, check=False, timeout=200)
    assert worked.returncode == 0, worked.stderr
    assert shards_of(bucket.out) == clean
    assert storage.list_files(bucket.work)
    clean_up = [sys.executable, "-m", "shardkit", "clean", bucket.out, "--work-dir", bucket.work, "--older-than", "0s"]
    subprocess.run([*clean_up, "--delete"], check=True, env=bucket.environment, capture_output=True)
    assert storage.list_files(bucket.work) == []
    again = launch(bucket)
    assert again.returncode == 4, again.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{", "Write options of convert like"),
        ("[]", "it is no JSON object"),
        ('{"num_shard": 3}', "there is no option 'num_shard'"),
    ],
)
def test_wrong_options_are_named(bucket, options, words):
    done = launch(bucket, options=options)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert words in done.stderr
    assert not storage.exists(f"{bucket.temp}/job_object")


def test_googles_own_schema_knows_all_of_the_metadata():
    found = dataflow.TemplateMetadata.from_json(json.dumps(METADATA), ignore_unknown_fields=False)
    assert [p.name for p in found.parameters] == ["inputs", "destination", "options"]
    with pytest.raises(Exception, match="optional"):
        dataflow.TemplateMetadata.from_json('{"parameters": [{"optional": true}]}', ignore_unknown_fields=False)
    (inputs, destination, options) = ([re.compile(r) for r in p.regexes] for p in found.parameters)
    assert all(r.search("gs://bucket/raw/*.csv") and not r.search("/raw") for r in (*inputs, *destination))
    assert all(r.search(OPTIONS) for r in options)


def test_the_image_starts_the_launcher_with_our_program():
    ((source, target),) = re.findall(r"^COPY (?!--from)(\S+) (\S+)$", DOCKERFILE, re.MULTILINE)
    assert (ROOT / source).is_file()
    assert f"FLEX_TEMPLATE_PYTHON_PY_FILE={target}" in DOCKERFILE
    assert "SHARDKIT_IMAGE=${IMAGE}" in DOCKERFILE
