"""Processes that are forked from the tests' own.

Before anything else they put what the parent left out of the collector's reach: objects of TensorFlow that another test
left in cycles wait for threads which a forked process does not have, and abort it.
"""

import gc
import multiprocessing
import os

FORK = multiprocessing.get_context("fork")


class ForkedProcess(FORK.Process):
    def run(self):
        gc.freeze()
        super().run()


def fork(function, *args):
    """Returns the process that calls the function; it ends with 0 if that returns true, 2 if false, 1 if it raises."""
    child = os.fork()
    if child:
        return child
    outcome = 1
    try:
        gc.freeze()
        outcome = 0 if function(*args) else 2
    finally:
        os._exit(outcome)


def exit_codes(children):
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
