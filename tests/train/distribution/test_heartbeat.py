"""Signs of life: who may be silent for how long, and who judges by whose clock."""

from __future__ import annotations

from train.distribution.heartbeat import START_LIMIT_S, Heartbeat, Watch


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_silence_is_counted_by_the_clock_of_the_reader(tmp_path) -> None:
    heartbeat, watch = Heartbeat(str(tmp_path / "beat"), lambda: 5e9), Watch(tmp_path / "beat", now_s=0.0)
    watch.look(3.0)
    assert (watch.silent_s(3.0), watch.pulse.limit_s, watch.pulse.step) == (3.0, START_LIMIT_S, None)
    heartbeat.beat(1)
    watch.look(4.0)
    watch.look(6.0)
    assert (watch.silent_s(6.0), watch.pulse.limit_s, watch.pulse.step) == (2.0, 10.0, 1)
    watch.forgive(7.0)
    assert watch.silent_s(7.0) == 0.0


def test_slow_steps_may_be_silent_for_a_few_of_them_and_a_hiccup_is_forgotten(tmp_path) -> None:
    clock, watch = Clock(), Watch(tmp_path / "beat", now_s=0.0)
    heartbeat = Heartbeat(str(tmp_path / "beat"), clock)

    def limit_after(step: int, step_s: float) -> float:
        clock.now_s += step_s
        heartbeat.beat(step)
        watch.look(0.0)
        return watch.pulse.limit_s

    assert [limit_after(0, 0.0), limit_after(1, 1.0), limit_after(2, 4.0)] == [10.0, 10.0, 20.0]
    limits = [limit_after(step, 0.5) for step in range(3, 20)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == 10.0


def test_a_long_phase_has_its_own_limit_and_says_nothing_about_steps(tmp_path) -> None:
    clock, watch = Clock(), Watch(tmp_path / "beat", now_s=0.0)
    heartbeat = Heartbeat(str(tmp_path / "beat"), clock)
    heartbeat.beat(7)
    with heartbeat.busy("evaluation", 600.0), heartbeat.busy("checkpoint", 60.0):
        watch.look(0.0)
        assert (watch.pulse.phase, watch.pulse.limit_s, watch.pulse.step) == ("checkpoint", 60.0, 7)
        clock.now_s += 100
    watch.look(0.0)
    assert (watch.pulse.phase, watch.pulse.limit_s) == ("training", 10.0)
    heartbeat.beat(8)
    watch.look(0.0)
    assert (watch.pulse.step, watch.pulse.limit_s) == (8, 10.0)


def test_a_phase_that_beats_keeps_its_name_and_has_a_rhythm_of_its_own(tmp_path) -> None:
    clock, watch = Clock(), Watch(tmp_path / "beat", now_s=0.0)
    heartbeat = Heartbeat(str(tmp_path / "beat"), clock)
    heartbeat.beat(6)
    clock.now_s += 4
    heartbeat.beat(7)
    found = []
    with heartbeat.busy("validation", 300.0):
        for batch_s in (90.0, 3.0, 1.0):
            clock.now_s += batch_s
            heartbeat.beat(7)
            watch.look(0.0)
            found.append((watch.pulse.phase, watch.pulse.limit_s, watch.pulse.step))
    # Of the first batch nobody can say how long the next one takes.
    assert found == [("validation", 300.0, 7), ("validation", 15.0, 7), ("validation", 13.5, 7)]
    watch.look(0.0)
    assert (watch.pulse.phase, watch.pulse.limit_s) == ("training", 20.0)
    heartbeat.beat(8)
    watch.look(0.0)
    assert (watch.pulse.phase, watch.pulse.limit_s) == ("training", 20.0)


def test_a_sign_that_is_being_written_is_read_the_next_time(tmp_path) -> None:
    path = tmp_path / "beat"
    heartbeat, watch = Heartbeat(str(path)), Watch(path, now_s=0.0)
    heartbeat.beat(1)
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    watch.look(1.0)
    assert watch.pulse.step is None
    path.write_bytes(whole)
    watch.look(2.0)
    assert watch.pulse.step == 1


def test_without_a_supervisor_a_heartbeat_does_nothing() -> None:
    heartbeat = Heartbeat.from_environment({})
    with heartbeat.busy("evaluation", 1.0):
        heartbeat.beat(1)
