"""Runs a pipeline that was staged for Dataflow on this machine: run_staged.py PIPELINE.pb COUNTERS.json"""

import json
import sys
from pathlib import Path

from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def main(staged: str, counters_path: str) -> None:
    pipeline = beam_runner_api_pb2.Pipeline.FromString(Path(staged).read_bytes())
    for environment in pipeline.components.environments.values():
        environment.urn = python_urns.EMBEDDED_PYTHON
        environment.payload = b""
        del environment.dependencies[:]
    result = FnApiRunner().run_via_runner_api(pipeline, PipelineOptions(["--runner=FnApiRunner"]))
    result.wait_until_finish()
    found: dict[str, int] = {}
    for counter in result.metrics().query(MetricsFilter().with_namespace("shardkit"))["counters"]:
        found[counter.key.metric.name] = found.get(counter.key.metric.name, 0) + counter.committed
    Path(counters_path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
