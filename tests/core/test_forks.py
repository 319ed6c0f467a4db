"""Work in processes that are forked off: results, events, and whatever can end one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from suture.core.forks import Died, Ended, Job, Link, side_by_side
from suture.errors import ConfigError


def _returning(value: int) -> Callable[[Link], int]:
    def work(link: Link) -> int:
        link.tell(f"{value} begins")
        return value * value

    return work


def test_every_job_is_done_in_a_process_of_its_own_and_told_of() -> None:
    heard: list[tuple[str, object]] = []
    jobs = [Job(f"job {number}", _returning(number)) for number in range(5)]
    ends = side_by_side(jobs, at_once=2, threads=1, hear=lambda name, event: heard.append((name, event)))
    assert {end.name: end.result for end in ends} == {f"job {number}": number * number for number in range(5)}
    assert sorted(heard) == [(f"job {number}", f"{number} begins") for number in range(5)]
    (here,) = side_by_side([Job("where", lambda link: os.getpid())], at_once=1, threads=1)
    assert here.result not in (None, os.getpid())


def test_no_more_than_so_many_are_asked_for_at_once(tmp_path: Path) -> None:
    def busy(link: Link) -> int:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(0.2)
        at_once = len(list(tmp_path.iterdir()))
        (tmp_path / str(os.getpid())).unlink()
        return at_once

    ends = side_by_side([Job(str(number), busy) for number in range(5)], at_once=2, threads=1)
    assert max(end.result or 0 for end in ends) == 2


def test_threads_are_those_that_were_asked_for_even_after_this_process_has_computed_with_several() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        matrix = torch.ones(600, 600)
        assert float((matrix @ matrix)[0, 0]) == 600  # now there is a pool of threads, which a fork would wait for

        def product(link: Link) -> tuple[int, float]:
            return torch.get_num_threads(), float((matrix @ matrix).sum())

        (end,) = side_by_side([Job("product", product)], at_once=1, threads=2)
    finally:
        torch.set_num_threads(before)
    assert end.result == (2, 600.0**3)


def test_whatever_ends_one_job_the_others_go_on() -> None:
    def killed(link: Link) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def refused(link: Link) -> int:
        raise ConfigError("no such thing; give another")

    def broken(link: Link) -> int:
        return int(1 / 0)

    def gone(link: Link) -> int:
        os._exit(3)

    works = {"killed": killed, "refused": refused, "broken": broken, "gone": gone, "whole": _returning(3)}
    jobs = [Job(name, work) for name, work in works.items()]
    ends: dict[str, Ended[int]] = {end.name: end for end in side_by_side(jobs, at_once=2, threads=1)}
    assert ends["whole"].result == 9 and ends["whole"].error is None
    assert isinstance(ends["killed"].error, Died)
    assert str(ends["killed"].error) == "killed was ended by SIGKILL, as the system does when memory is used up"
    assert isinstance(ends["refused"].error, ConfigError) and str(ends["refused"].error) == "no such thing; give another"
    assert isinstance(ends["broken"].error, ZeroDivisionError) and "1 / 0" in ends["broken"].error.__notes__[0]
    assert str(ends["gone"].error) == "gone ended without a word, with exit code 3"


def test_asked_to_stop_jobs_end_where_they_can_and_no_other_is_begun() -> None:
    def until_stopped(link: Link) -> str:
        link.tell("at work")
        while not link.stop():
            time.sleep(0.01)
        return "stopped"

    heard: list[object] = []
    ends = side_by_side(
        [Job(str(number), until_stopped) for number in range(4)],
        at_once=2,
        threads=1,
        hear=lambda name, event: heard.append(event),
        stop=lambda: len(heard) == 2,
    )
    assert [end.result for end in ends] == ["stopped", "stopped"]


def test_an_error_here_ends_all_of_them() -> None:
    pids: list[int] = []

    def endless(link: Link) -> None:
        link.tell(os.getpid())
        time.sleep(600)

    def hear(name: str, event: object) -> None:
        pids.append(int(str(event)))
        if len(pids) == 2:
            raise KeyError("a bug of ours")

    with pytest.raises(KeyError, match="bug"):
        side_by_side([Job("one", endless), Job("two", endless)], at_once=2, threads=1, hear=hear)
    assert len(pids) == 2 and not any(_lives(pid) for pid in pids)


def test_no_job_outlives_the_process_it_was_forked_from() -> None:
    code = """
        import os, time
        from suture.core.forks import Job, side_by_side
        def endless(link):
            link.tell(os.getpid())
            time.sleep(600)
        jobs = [Job("one", endless), Job("two", endless)]
        side_by_side(jobs, at_once=2, threads=1, hear=lambda name, pid: print(pid, flush=True))
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    assert all(_lives(pid) for pid in pids)
    parent.kill()
    parent.wait()
    until = time.monotonic() + 20
    while any(_lives(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
