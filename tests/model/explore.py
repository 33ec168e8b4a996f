"""Explores every interleaving of some actors over a store, up to a number of crashes, of jumps of the clock and of
answers that are lost.

An actor is a generator. It yields requests to the store and gets the answers. One request is one step. Between two
steps of an actor, other actors may take any number of steps, an actor may die, or so much time may pass that no sign
counts any more. Two states are the same if their stores, the positions of their actors and all variables are equal.
Each state is explored once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardkit.dataset import commit

Request = tuple[Any, ...]
Actor = Callable[[], Generator[Request, Any, str]]
JUMP_S = 1000.0
"""How much time passes at once: more than any sign counts for."""
START_S = 10 * JUMP_S
"""When an exploration begins."""


class Stored(NamedTuple):
    """A file of the store: its content, and when it was written."""

    content: Any
    at: float


class Store:
    """What the store holds, and its clock."""

    def __init__(self, files: Mapping[str, Stored], now: float) -> None:
        self.files = dict(files)
        self.now = now

    def answer(self, request: Request, skew: float = 0.0) -> Any:
        """Does what a request asks for, at once, and returns the answer; the actor's own clock differs by `skew`."""
        kind, *rest = request
        if kind in ("create", "create what is not there"):
            path, content = rest
            if path in self.files:
                # An answer may have been lost, and the file be the actor's own.
                return kind == "create" and self.files[path].content == content
            self.files[path] = Stored(content, self.now)
            return True
        if kind == "put":
            self.files[rest[0]] = Stored(rest[1], self.now)
            return None
        if kind == "delete":
            self.files.pop(rest[0], None)
            return None
        if kind == "list":
            return tuple(sorted((path, f.at) for path, f in self.files.items() if path.startswith(rest[0])))
        if kind == "read":
            return self.files[rest[0]].content if rest[0] in self.files else None
        if kind == "written":
            return self.files[rest[0]].at if rest[0] in self.files else None
        if kind == "time":
            return self.now + skew
        if kind == "if young":
            # The look at the own clock and the request behind it are one step: no process is held up for ten minutes
            # between them, of which fifteen are a sign's.
            put_at, behind = rest
            return "late" if commit.is_late(put_at, self.now + skew) else self.answer(behind)
        raise AssertionError(request)

    def may_answer(self, request: Request) -> bool:
        """Whether a request that waits would go on."""
        if request[0] != "wait":
            return True
        return not any(path in self.files and self.files[path].at > self.now - JUMP_S for path in request[1])


class State(NamedTuple):
    """A point of an exploration: the answers that each actor got so far, who is dead, and what may still happen."""

    files: tuple[tuple[str, Stored], ...]
    now: float
    answers: tuple[tuple[Any, ...], ...]
    dead: frozenset[int]
    crashes: int
    jumps: int
    losses: int


class Explored(NamedTuple):
    """What was explored: the number of states, and the first history that breaks an invariant."""

    num_states: int
    broken: str | None
    history: tuple[str, ...]


def explore(
    actors: Iterable[Actor],
    files: Mapping[str, Stored],
    check: Callable[[Mapping[str, Stored], tuple[str | None, ...]], str | None],
    *,
    crashes: int,
    jumps: int,
    losses: int = 0,
    skews: Sequence[float] = (),
    max_states: int = 10**7,
) -> Explored:
    """Explores all interleavings.

    Args:
        actors: Makers of generators; what a generator returns is its end.
        files: What the store holds at first.
        check: Returns what is wrong with a store and the ends of the actors (None for those that are at work or dead).
        crashes: How many actors may die.
        jumps: How often so much time may pass that no sign counts any more.
        losses: How many answers may be lost: the store does what was asked for, and the actor asks again.
        skews: By how much the clock of each actor differs from the store's; not at all if not given.
        max_states: Raises beyond.
    """
    makers = tuple(actors)
    start = State(tuple(sorted(files.items())), START_S, ((),) * len(makers), frozenset(), crashes, jumps, losses)
    seen = set()
    waiting: list[tuple[State, tuple[str, ...]]] = [(start, ())]
    while waiting:
        state, history = waiting.pop()
        at = [_replay(maker, state.answers[i]) for i, maker in enumerate(makers)]
        ends = tuple(found.end if i not in state.dead else None for i, found in enumerate(at))
        key = (state._replace(answers=()), ends, *(found.memory for i, found in enumerate(at) if i not in state.dead))
        if key in seen:
            continue
        seen.add(key)
        assert len(seen) <= max_states
        if (broken := check(dict(state.files), ends)) is not None:
            return Explored(len(seen), broken, history)
        following = list(_following(state, at, skews))
        if not following and any(found.end is None and i not in state.dead for i, found in enumerate(at)):
            return Explored(len(seen), "an actor waits for ever", history)
        waiting += [(after, (*history, word)) for word, after in following]
    return Explored(len(seen), None, ())


class _At(NamedTuple):
    """Where an actor is: what it asks for next, or its end, and all that it remembers."""

    request: Request | None
    end: str | None
    memory: str


def _replay(maker: Actor, answers: tuple[Any, ...]) -> _At:
    running = maker()
    try:
        request = next(running)
        for answer in answers:
            request = running.send(answer)
    except StopIteration as end:
        return _At(None, end.value, "")
    return _At(request, None, _memory_of(running))


def _memory_of(running: Generator[Request, Any, Any] | None) -> str:
    """Returns where a generator stands, with its variables: actors that remember the same go on in the same way."""
    parts = []
    while running is not None:
        parts.append(f"{running.gi_frame.f_lasti} {sorted(running.gi_frame.f_locals.items(), key=str)}")
        running = running.gi_yieldfrom
    return "\n".join(parts)


def _following(state: State, at: list[_At], skews: Sequence[float]) -> Iterable[tuple[str, State]]:
    is_any_at_work = is_any_answered = False
    for i, (request, _, _) in enumerate(at):
        if request is None or i in state.dead:
            continue
        is_any_at_work = True
        if state.crashes:
            yield f"{i} dies", state._replace(dead=state.dead | {i}, crashes=state.crashes - 1)
        store = Store(dict(state.files), state.now)
        if not store.may_answer(request):
            continue
        is_any_answered = True
        answer = None if request[0] == "wait" else store.answer(request, skews[i] if skews else 0.0)
        answers = (*state.answers[:i], (*state.answers[i], answer), *state.answers[i + 1 :])
        files = tuple(sorted(store.files.items()))
        if state.losses and files != state.files:
            yield f"{i} gets no answer to {request[:2]}", state._replace(files=files, losses=state.losses - 1)
        yield f"{i} {' '.join(map(str, request[:2]))} -> {answer}", state._replace(files=files, answers=answers)
    if is_any_at_work and not is_any_answered:
        # Waiting takes time itself.
        yield "time passes", state._replace(now=state.now + JUMP_S)
    elif is_any_at_work and state.jumps:
        yield "time passes", state._replace(now=state.now + JUMP_S, jumps=state.jumps - 1)
