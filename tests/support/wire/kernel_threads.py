"""Whether a call into compiled code lets other threads run."""

import sys
import threading


def runs_beside_python(call, attempts=500):
    """Returns whether this thread got to run while another was inside of `call`.

    The interpreter is told not to switch threads by itself, so that only a call that lets go of the GIL is left early.
    It takes many attempts where other processes keep the cores busy: the call may be over before this thread gets one.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        return any(_was_left_early(call) for _ in range(attempts))
    finally:
        sys.setswitchinterval(interval)


def _was_left_early(call):
    is_called, is_done = threading.Event(), []

    def work():
        is_called.set()
        try:
            call()
        finally:
            is_done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    is_called.wait()
    was_inside = not is_done
    thread.join()
    return was_inside
