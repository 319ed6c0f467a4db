"""The debug engine: the numbers of the embedded one, one client at a time, and errors that say where they come from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import golden.curves as golden
import pytest
import torch

import suture
from suture.commands.complaints import sentence
from suture.engines.debug import DebugCohort
from suture.errors import ConfigError, StepError, place_of
from suture.method import Clients, Method, step
from suture.methods import METHODS
from suture.methods.averaging import Kept, Server, Up
from suture.methods.fedavg import FedAvg
from suture.runs.execute import execute
from suture.runs.outcome import Finished
from suture.runs.plan import plan
from suture.runs.prepare import Source
from suture.seam import Cohort

GRAPH = "csbm:nodes=200,features=30,words_per_node=6"
DEBUG = suture.Options(engine="debug")


def carried_out(kind: type[Method[Any, Any]], engine: str, *overrides: str) -> Finished:
    """Three rounds of a method that is in no registry, with three clients."""
    made = plan(GRAPH, ["fedavg"], clients=3, seeds=[0], overrides=["rounds=3", "hidden=8", *overrides])
    method = kind(model=made.methods[0].model, training=made.methods[0].training)
    return execute(Source(made).prepared(0), method, made.protocol, engine=engine)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_the_numbers_of_the_embedded_engine(name: str) -> None:
    overrides = ["rounds=3", *golden.KNOWING.get(name, ()), *(f"{name}.{value}" for value in golden.BRIEF.get(name, ()))]
    protocol = golden.PROTOCOL.get(name, "fedpub-disjoint")
    mine, theirs = (
        suture.run(golden.SYNTHETIC, name, protocol=protocol, clients=3, seed=7, overrides=overrides, options=options)
        for options in (DEBUG, suture.Options(chunk=2))
    )
    assert len(mine.history) == len(theirs.history)
    for one, other in zip(mine.history, theirs.history, strict=True):
        assert one.keys() == other.keys() and (one["phase"], one["round"]) == (other["phase"], other["round"])
        assert one.get("loss", 0.0) == pytest.approx(other.get("loss", 0.0), abs=1e-4)
        # A node on the border of two classes may fall to either side.
        assert one.get("client_test", []) == pytest.approx(other.get("client_test", []), abs=0.06)
    assert (mine.outcome.bytes_up, mine.outcome.bytes_down) == (theirs.outcome.bytes_up, theirs.outcome.bytes_down)


@pytest.mark.parametrize("name", ["fedavg", "fedpub", "gcfl", "fedproto"])
def test_clients_that_were_never_asked_are_no_error(name: str) -> None:
    overrides = ["rounds=2", "hidden=8", "participation=0.4"]
    result = suture.run(GRAPH, name, clients=5, seed=0, overrides=overrides, options=DEBUG)
    assert result.outcome.rounds == 2


@dataclasses.dataclass(frozen=True)
class Watching(FedAvg):
    """Fails unless a step sees one client, with anomaly detection on."""

    @step
    def local_update(self, clients: Clients[Kept], down: Any) -> tuple[Kept, Up]:
        assert len(clients.ids) == 1 and torch.is_anomaly_enabled()
        return super().local_update(clients, down)


@dataclasses.dataclass(frozen=True)
class Broken(FedAvg):
    """One client cannot divide."""

    @step
    def local_update(self, clients: Clients[Kept], down: Any) -> tuple[Kept, Up]:
        if float(down.params["layer1.weight"].sum()) != self.first(clients) and clients.ids == ("client-01",):
            raise ZeroDivisionError("nothing to divide by\nand a second line")
        return super().local_update(clients, down)

    def first(self, clients: Clients[Kept]) -> float:
        """What everybody gets in the first round."""
        return float(self.initial_params(clients.task)["layer1.weight"].sum())


@dataclasses.dataclass(frozen=True)
class BrokenServer(FedAvg):
    """The server forgets a name."""

    def round(self, server: Server, cohort: Cohort) -> Server:
        raise KeyError("similarity")


@dataclasses.dataclass(frozen=True)
class BrokenBackward(FedAvg):
    """The forward pass is finite, its gradient is 0 times infinity."""

    @step
    def local_update(self, clients: Clients[Kept], down: Any) -> tuple[Kept, Up]:
        x = torch.zeros(1, requires_grad=True)
        (x.sqrt() * 0).sum().backward()
        return super().local_update(clients, down)


def test_a_step_sees_one_client_and_anomaly_detection() -> None:
    assert carried_out(Watching, "debug").outcome.rounds == 3
    assert not torch.is_anomaly_enabled()
    with pytest.raises(AssertionError):
        carried_out(Watching, "embedded")


def test_an_exception_stays_itself_and_says_where_it_is_from() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        carried_out(Broken, "debug")
    assert place_of(caught.value) == "client client-01, step local_update, phase round, round 2"
    assert caught.traceback[-1].path == Path(__file__), "a debugger must land in the step"
    assert sentence(caught.value) == (
        "ZeroDivisionError: nothing to divide by (client client-01, step local_update, phase round, round 2); "
        "SUTURE_DEBUG=1 shows the line"
    )


def test_the_embedded_engine_leaves_a_bug_a_bug() -> None:
    with pytest.raises(AssertionError) as caught:
        carried_out(Watching, "embedded")
    assert place_of(caught.value) is None and sentence(caught.value) is None


def test_what_goes_wrong_at_the_server_says_so() -> None:
    with pytest.raises(KeyError) as caught:
        carried_out(BrokenServer, "debug")
    assert place_of(caught.value) == "the server, round, phase round, round 1"


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
def test_a_backward_pass_that_makes_nan_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"SqrtBackward0.*returned nan") as caught:
        carried_out(BrokenBackward, "debug")
    assert place_of(caught.value) == "client client-00, step local_update, phase round, round 1"
    carried_out(BrokenBackward, "embedded")


@dataclasses.dataclass(frozen=True)
class Infinite(FedAvg):
    """Answers an infinite weight."""

    @step
    def local_update(self, clients: Clients[Kept], down: Any) -> tuple[Kept, Up]:
        state, up = super().local_update(clients, down)
        return state, dataclasses.replace(up, weight=up.weight / 0)


@dataclasses.dataclass(frozen=True)
class Forgetful(FedAvg):
    """Keeps NaN from the start."""

    def init_clients(self, clients: Any) -> Kept:
        state = super().init_clients(clients)
        return state.from_tensors(state.ids, {}, {path: value * float("nan") for path, value in state.tensors().items()})


def test_infinity_in_a_reply_is_one_sentence() -> None:
    with pytest.raises(StepError) as caught:
        carried_out(Infinite, "debug")
    assert str(caught.value) == (
        "client client-00, step local_update, phase round, round 1: it answers infinity in weight of its Up; "
        "look at that step, or lower training.lr"
    )


def test_nan_that_a_client_keeps_is_one_sentence() -> None:
    with pytest.raises(StepError, match=r"^client client-00, init_clients, before the first round: it keeps NaN in "):
        carried_out(Forgetful, "debug")


def test_unknown_engines_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    options = suture.Options(engine="debugg", data_root=tmp_path)
    with pytest.raises(ConfigError, match="unknown engine 'debugg': did you mean 'debug'"):
        suture.run("cora", "fedavg", options=options)


@pytest.mark.parametrize(("before", "after"), [("embedded", "debug"), ("debug", "embedded")])
def test_a_run_can_go_on_in_the_other_engine(tmp_path: Path, before: str, after: str) -> None:
    overrides = ["rounds=6", "hidden=8"]
    whole = suture.run(GRAPH, "fedper", clients=4, seed=0, overrides=overrides)
    rounds: list[int] = []
    options = suture.Options(engine=before, watch=lambda *told: rounds.append(told[2].done), stop=lambda: len(rounds) == 3)
    with pytest.raises(suture.SutureError, match="stopped after round 3 of 6"):
        suture.run(GRAPH, "fedper", clients=4, seed=0, overrides=overrides, out=tmp_path / "r", options=options)
    resumed = suture.resume(tmp_path / "r", options=suture.Options(engine=after))
    for mine, theirs in zip(resumed.history("fedper", 0), whole.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)


def test_a_sample_of_a_debug_cohort_is_one() -> None:
    made = plan(GRAPH, ["fedavg"], clients=4, seeds=[0], overrides=["hidden=8"])
    world = Source(made).prepared(0)
    cohort = DebugCohort.start(made.methods[0], world.clients, world.task)
    assert type(cohort.sample(0.5)) is DebugCohort and len(cohort.sample(0.5).ids) == 2
