"""Messages outlive the clearing of garbage, whoever parses meanwhile."""

import subprocess
import sys
import textwrap

import pytest

from tests.support.files.tfrecord_makers import example, sequence

pytestmark = pytest.mark.full


@pytest.mark.parametrize("record", [example(number=[7]), sequence({}, number=[[7]])], ids=["Example", "lists"])
def test_a_record_parsed_while_garbage_is_cleared(record):
    # The array is no container of the collector's, so that what it holds goes while the collector clears the cycle,
    # before it clears what became garbage later: the classes, if nobody else holds them.
    program = f"""
        import gc
        import numpy as np
        from shardkit.encoding.example import stored_features
        from shardkit.sources.tfrecord import messages as tfrecord_messages

        def messages():
            sequence = tfrecord_messages._FeatureListsOnly.FromString({record!r})
            steps = [step for entry in sequence.feature_lists.feature_list for step in entry.value.feature]
            return list(stored_features({record!r}).values()) + steps

        class ParsesAtItsEnd:
            def __del__(self):
                found.extend(messages())

        found = []
        gc.collect()
        gc.disable()
        held = np.empty(1, object)
        held[0] = ParsesAtItsEnd()
        cycle = [held]
        cycle.append(cycle)
        del held, cycle
        messages()
        gc.collect()
        print(*[message.WhichOneof("kind") for message in found])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "int64_list\n"), done.stderr
