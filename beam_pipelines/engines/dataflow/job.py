"""A job on Dataflow that the command watches: looks at it, and sentences about its end."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from beam_pipelines.metrics import NAMESPACE, totals_of
from shardkit.conversion.progress import Totals
from shardkit.errors import ShardkitError, StorageError

ENDED = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_DRAINED", "JOB_STATE_UPDATED")
RUNNING, UNKNOWN = "JOB_STATE_RUNNING", "JOB_STATE_UNKNOWN"
NOTHING = "Nothing was committed"
_MAX_DELAY_S = 60.0
_MAX_SHOWN, _MAX_MESSAGES = 500, 3
_OWN_ERROR = re.compile(r"\bshardkit\.errors\.(\w+): (.+)")
_ERROR_LINE = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_NO_SHARDKIT = re.compile(r"No module named '(shardkit|beam_pipelines)[.\w]*'")


class Look(NamedTuple):
    """What is seen of a job.

    Attributes:
        num_planned_bytes: Of all shards before compression, None before they are laid out.
    """

    state: str
    totals: Totals = Totals()
    num_planned_bytes: int | None = None


class DataflowJob:
    """A job that was handed over."""

    def __init__(self, client: Any, job_id: str, project: str, region: str) -> None:
        self._client = client
        self.id = job_id
        self.url = job_url(project, region, self.id)
        self._counted: tuple[Totals, int | None] = (Totals(), None)

    def state(self) -> str:
        """Returns the state, without trying again.

        Raises:
            Exception: Whatever the connection ends with.
        """
        # Beam itself would try for ten minutes, in silence.
        state = type(self._client).get_job.__wrapped__(self._client, self.id).current_state
        return str(getattr(state, "name", state))

    def look(self) -> Look:
        """Returns the state and the counters; where Dataflow gives no counters, the last ones.

        Raises:
            Exception: Whatever the connection ends with.
        """
        state = self.state()
        with suppress(Exception):
            reply = type(self._client).get_job_metrics.__wrapped__(self._client, self.id).metrics
            self._counted = totals_of(counters_of(reply))
        return Look(state, *self._counted)

    def errors(self) -> list[str]:
        """Returns the error messages of the job, the oldest first; none if Dataflow gives none."""
        found: list[str] = []
        with suppress(Exception):
            page: str | None = None
            while True:
                messages, page = type(self._client).list_messages.__wrapped__(
                    self._client, self.id, page_token=page, minimum_importance="JOB_MESSAGE_ERROR"
                )
                found += [str(m.message_text) for m in messages]
                if not page:
                    break
        return found

    def cancel(self) -> None:
        """Asks for the end of the job.

        Raises:
            Exception: Whatever the connection ends with.
        """
        type(self._client).modify_job_state.__wrapped__(self._client, self.id, "JOB_STATE_CANCELLED")


class Watch:
    """Looks at a job again and again, in a separate thread, because a slow network may hold up a look for long."""

    def __init__(self, look: Callable[[], Look], poll_s: float) -> None:
        self._look = look
        self._poll_s = poll_s
        self._stopped = threading.Event()
        self.seen = threading.Event()
        self.latest: Look | None = None
        self.answered_at = time.monotonic()
        self.why: str | None = None
        self._asked_at: float | None = None
        threading.Thread(target=self._run, daemon=True, name="dataflow").start()

    def stop(self) -> None:
        """Ends the looking."""
        self._stopped.set()

    def silent_s(self) -> float:
        """Returns for how long there was no answer, beyond the pause between two looks."""
        since = self._asked_at if self.why is None else self.answered_at
        return 0.0 if since is None else time.monotonic() - since

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._asked_at = time.monotonic()
            try:
                self.latest = self._look()
                self.answered_at, self.why, failures = time.monotonic(), None, 0
            except Exception as error:  # noqa: BLE001 - each of them means that there is no answer
                self.why, failures = first_line(error), failures + 1
            self._asked_at = None
            self.seen.set()
            self._stopped.wait(delay_s(self._poll_s, failures))


def delay_s(poll_s: float, failures: int) -> float:
    """Returns the pause before the next look: twice as long after each that failed, up to a minute."""
    return min(poll_s * 2 ** min(failures, 16), max(poll_s, _MAX_DELAY_S))


def counters_of(metrics: Iterable[Any]) -> list[tuple[str, int]]:
    """Returns name and value of each counter of shardkit, in each step.

    Args:
        metrics: As Dataflow tells them: for each counter a tentative value, a committed one, or both.
    """
    found: dict[tuple[str, str], int] = {}
    for metric in metrics:
        context = metric.name.context
        is_number = isinstance(metric.scalar, int | float)
        if metric.name.origin == "user" and context.get("namespace") == NAMESPACE and is_number:
            key = (str(metric.name.name), str(context.get("step")))
            # Committed ones stand still while a worker is at a part; tentative ones may forget parts that are done.
            found[key] = max(found.get(key, 0), int(metric.scalar))
    return [(name, value) for (name, _), value in found.items()]


def job_url(project: str, region: str, job_id: str) -> str:
    """Returns the address of a job's page in Google's console."""
    return f"https://console.cloud.google.com/dataflow/jobs/{region}/{job_id}?project={project}"


def first_line(error: BaseException) -> str:
    """Returns the text of an exception, on one line."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:_MAX_SHOWN]


def explain_end(state: str, messages: Sequence[str], url: str, committed: str) -> ShardkitError:
    """Returns the error for a job that ended otherwise than well.

    Args:
        messages: Its error messages, the oldest first.
    """
    if state == "JOB_STATE_FAILED":
        return _explain_failure(messages, url, committed)
    what, why = {
        "JOB_STATE_CANCELLED": ("the job was cancelled", "by another user, or by a rule of the project"),
        "JOB_STATE_DRAINED": ("the job was drained", "a user asked it to end early"),
        "JOB_STATE_UPDATED": ("the job was replaced", "a user put another one in its place"),
    }[state]
    return StorageError(
        what, where=url, why=why, state=committed, next_step="Run the same command again to go on where it stopped"
    )


def _explain_failure(messages: Sequence[str], url: str, committed: str) -> ShardkitError:
    own = next((m for text in messages for m in [_OWN_ERROR.search(text)] if m is not None), None)
    if own is not None:
        kind, text = own.groups()
        return ShardkitError.from_dict(
            {
                "type": kind,
                "what": re.sub(r" \[while running '.*", "", text).strip().rstrip("."),
                "where": None,
                "why": None,
                "state": committed,
                "next_step": f"The job: {url}",
            }
        )
    if any(_NO_SHARDKIT.search(text) for text in messages):
        return StorageError(
            "the workers have no shardkit",
            where=url,
            why="the image has none, or installing it failed",
            state=committed,
            next_step="Look at the log of the workers there; the image, or the wheel of --extra_package, must hold it",
        )
    return StorageError(
        "the job failed",
        where=url,
        why=_shown(messages),
        state=committed,
        next_step="Look at the log of the workers there, then run the same command again to go on",
    )


def _shown(messages: Sequence[str]) -> str:
    # The error of a worker says more than the message that four tries failed.
    ranked = [text for text in messages if "Traceback" in text] or [t for t in messages if "was attempted" not in t]
    # Each of several tries says the same.
    texts = list(dict.fromkeys(map(_reason, ranked or messages)))[-_MAX_MESSAGES:]
    return "; ".join(texts)[:_MAX_SHOWN] or "Dataflow gave no reason"


def _reason(text: str) -> str:
    lines = _ERROR_LINE.findall(text)
    return ": ".join(lines[-1]) if lines else " ".join(text.split())
