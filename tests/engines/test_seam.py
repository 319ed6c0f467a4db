"""What cohorts of every engine do alike."""

from __future__ import annotations

import torch

from suture.engines.embedded import EmbeddedCohort
from suture.federation.coordinator.cohort import OwnersCohort
from suture.method import Task
from suture.seam import CohortBase, Common

NAMES = tuple(f"client-{k}" for k in range(10))
TASK = Task(features=3, classes=2, seed=5)


class Lossy(CohortBase[Common]):
    """Two of its clients cannot be asked."""

    @property
    def present(self) -> tuple[str, ...]:
        return tuple(name for name in self._ids if name not in ("client-2", "client-7"))


def test_a_sample_is_a_share_in_the_old_order_and_another_after_every_question() -> None:
    common = Common(task=TASK)
    cohort = CohortBase(common, NAMES)
    seen = set()
    for _ in range(20):
        sample = cohort.sample(0.3).ids
        assert len(sample) == 3 and list(sample) == sorted(sample) and set(sample) <= set(NAMES)
        assert cohort.sample(0.3).ids == sample
        seen.add(sample)
        common.asked += 1
    assert len(seen) > 10
    assert cohort.sample(1.0) is cohort and len(cohort.sample(0.01).ids) == 1


def test_who_is_drawn_does_not_depend_on_the_order_of_clients() -> None:
    there, back = (CohortBase(Common(task=TASK), names).sample(0.4).ids for names in (NAMES, NAMES[::-1]))
    assert set(there) == set(back)


def test_only_who_is_present_is_sampled_but_the_share_is_of_everybody() -> None:
    cohort = Lossy(Common(task=TASK), NAMES)
    assert cohort.ids == NAMES
    assert len(cohort.sample(0.5).ids) == 5 and set(cohort.sample(0.5).ids) <= set(cohort.present)
    assert cohort.sample(1.0).ids == cohort.present and cohort.sample(0.9).ids == cohort.present


def test_a_sample_reports_and_keeps_for_the_whole_cohort_until_it_is_taken() -> None:
    cohort = CohortBase(Common(task=TASK), NAMES)
    sample = cohort.sample(0.5)
    sample.report(loss=0.5)
    cohort.report(loss=0.25, size=3.0)
    weight = torch.ones(2, requires_grad=True)
    sample.keep(weight=weight * 2)
    kept = cohort.take_kept()
    assert not kept["weight"].requires_grad and kept["weight"].tolist() == [2, 2]
    assert cohort.take_reports() == {"loss": 0.25, "size": 3.0}
    assert sample.take_reports() == {} and sample.take_kept() == {}


def test_both_engines_use_it_and_write_none_of_it_again() -> None:
    for name in ("ids", "asked", "sample", "begin", "report", "keep", "take_reports", "take_kept"):
        for kind in (EmbeddedCohort, OwnersCohort):
            assert getattr(kind, name) is getattr(CohortBase, name), f"{kind.__name__}.{name}"
