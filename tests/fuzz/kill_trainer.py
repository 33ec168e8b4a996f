"""Kills training runs at random moments, and shows that what goes on ends as if nothing had happened.

    python -m tests.fuzz.kill_trainer --seed 1 --trials 18 [--strategy single] [--elastic] [--markdown]

A model with dropout, batch normalization and a moving average of its weights is trained unbroken once for each
strategy. Then the same run is killed: at a random step, while it writes a checkpoint, while it restores one, several
times, with its supervisor; it is asked to stop, frozen, or loses its newest checkpoint to damage on the disk. What goes
on has to end with the same hash over the last and the best checkpoint (weights, averages, optimizer, step, seeds, sums)
and over what each epoch measured. Under a supervisor a loss has to be noticed within 2 s, a frozen worker within 15 s,
and all workers have to make a step within 30 s of that. Nobody may be left running. Of `servers`, which are the chief,
a parameter server and two workers without an order among them, what is compared are the epochs and their steps.

`restart` is the time from the supervisor's sentence to the first step of all workers; for a run that is started again
by hand, from its start to its first new checkpoint. `caught` counts trials in which a partly written checkpoint was on
the disk when the run was killed. Ends with status 1 if anything was not as it should be, after the commands of the
trial and what was done to them; `--only NUMBER` makes that one trial again.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.kill_elastic import lose_a_worker_twice
from tests.fuzz.kill_inputs import (
    STRATEGIES,
    checkpoint_steps,
    digest,
    make_dataset,
    options_of,
    step_s,
    train_command,
    write_model,
)
from tests.fuzz.kill_kinds import KINDS, WITHOUT
from tests.fuzz.kill_runs import Run
from tests.fuzz.kill_trials import Outcome, Subject, try_once

NUM_EPOCHS = 8
HEADERS = ("strategy", "what happens", "trials", "same hash", "caught", "worst notice s", "worst restart s")


def measure_unbroken(name: str, dataset: Path, options: tuple[str, ...], folder: Path) -> Subject:
    """Returns what an unbroken run of a strategy comes to.

    Raises:
        RuntimeError: If it fails.
    """
    strategy = STRATEGIES[name]
    output = folder / "run"
    options = (*options, *strategy.options)
    run = Run(train_command(dataset, output, *options), folder / "tmp")
    try:
        run.until(lambda: checkpoint_steps(output / "checkpoints"))
        start_s = time.monotonic() - run.started_s
        if run.end():
            raise RuntimeError("\n".join(text for _, text in run.said))
    finally:
        run.kill_all()
    return Subject(
        name=name,
        strategy=strategy,
        dataset=dataset,
        options=options,
        num_steps=checkpoint_steps(output / "checkpoints")[-1],
        step_s=step_s(output),
        start_s=start_s,
        contents=strategy.contents(output),
    )


def run_trials(subject: Subject, options: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Makes all trials of a strategy, the kinds in turn, and tells what became of each."""
    kinds = [k for k in options.kinds or KINDS if k not in WITHOUT.get(subject.name, ())]
    found = []
    for number in range(options.trials) if options.only is None else [options.only]:
        kind = kinds[number % len(kinds)]
        rng = random.Random(f"{options.seed} {subject.name} {number}")
        outcome = try_once(subject, kind, KINDS[kind], folder / str(number), rng)
        if outcome is None:
            print(f"  {number} {kind}: the run ended before it could be disturbed", flush=True)
            continue
        is_fine = outcome.is_same and not outcome.problems
        print(f"  {number} {kind}: {describe(outcome)}", flush=True)
        if not is_fine or options.verbose:
            print("\n".join(f"    {line}" for line in outcome.story), flush=True)
        if not is_fine:
            print(f"    again: --seed {options.seed} --strategy {subject.name} --only {number}", flush=True)
        found.append(outcome)
    return found


def describe(outcome: Outcome) -> str:
    """Returns one line on a trial."""
    parts = ["the same hash" if outcome.is_same else "ANOTHER HASH"]
    parts += [f"noticed after {s:.2f} s" for s in outcome.notice_s]
    parts += [f"restarted after {s:.1f} s" for s in outcome.restart_s]
    return ", ".join([*parts, *outcome.problems])


def rows_of(name: str, outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Returns the rows of the table for one strategy."""
    rows = []
    for kind in dict.fromkeys(o.kind for o in outcomes):
        own = [o for o in outcomes if o.kind == kind]
        notices, restarts = [s for o in own for s in o.notice_s], [s for o in own for s in o.restart_s]
        rows.append(
            (
                name,
                kind,
                str(len(own)),
                str(sum(o.is_same for o in own)),
                str(sum(bool(o.caught) for o in own)),
                f"{max(notices):.2f}" if notices else "-",
                f"{max(restarts):.1f}" if restarts else "-",
            )
        )
    return rows


def print_table(rows: Sequence[Sequence[str]], *, is_markdown: bool) -> None:
    """Prints columns under their headers."""
    lines = [HEADERS, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADERS))]
    rule = ["-" * width for width in widths]
    for line in (HEADERS, rule, *rows):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("| " + " | ".join(cells) + " |" if is_markdown else "  ".join(cells).rstrip(), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Makes the trials and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=18, help="of each strategy")
    parser.add_argument("--strategy", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), help="what happens; all kinds in turn if not given")
    parser.add_argument("--only", type=int, help="number of one trial")
    parser.add_argument("--epochs", type=int, default=NUM_EPOCHS)
    parser.add_argument("--synchronized", action="store_true", help="batch normalization over all replicas")
    parser.add_argument("--elastic", action="store_true", help="also lose a worker twice and go on with fewer")
    parser.add_argument("--folder", type=Path, help="for all that is written; a temporary one if not given")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="tell what was done in each trial")
    options = parser.parse_args(arguments)
    # What was started is to be ended and removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(f"seed {options.seed}", flush=True)
    rows: list[tuple[str, ...]] = []
    outcomes: list[Outcome] = []
    is_elastic_fine = True
    with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if options.trials or options.only is not None:
            dataset = make_dataset(folder)
            model = write_model(folder / "model.py", is_synchronized=options.synchronized)
        for strategy in options.strategy if options.trials or options.only is not None else ():
            subject = measure_unbroken(strategy, dataset, options_of(model, options.epochs), folder / strategy)
            print(f"{strategy}: unbroken in {subject.num_steps} steps, hash {digest(subject.contents)}", flush=True)
            found = run_trials(subject, options, folder / f"{strategy}-trials")
            rows += rows_of(strategy, found)
            outcomes += found
        if options.elastic:
            is_elastic_fine = lose_a_worker_twice(folder / "elastic", random.Random(f"{options.seed} elastic"))
    if rows:
        print_table(rows, is_markdown=options.markdown)
    num_same = sum(o.is_same for o in outcomes)
    num_problems = sum(bool(o.problems) for o in outcomes)
    print(f"{len(outcomes)} trials, {num_same} with the same hash, {num_problems} with problems")
    is_fine = is_elastic_fine and all(o.is_same and not o.problems for o in outcomes)
    return int(not is_fine or not (outcomes or options.elastic))


if __name__ == "__main__":
    sys.exit(main())
