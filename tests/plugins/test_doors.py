"""Things of others, by class, file and module: they run, are found again, and every mistake is one sentence."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import suture
from suture import api
from suture.cli import main
from suture.core.metrics import ACCURACY, of_one
from suture.core.trusted import let_in
from suture.errors import ConfigError, IntegrityError
from suture.graph.cut import load_manifest
from suture.graph.partition import make_partition
from suture.graph.synthetic import contextual_block_model
from suture.methods import DOOR
from suture.methods.fedavg import FedAvg
from suture.nn.backbones import BACKBONES as OUR_BACKBONES
from suture.plugins import Door, installed, load, spelling_of
from suture.runs.loop import Interrupted
from suture.settings import BACKBONES, METRICS, PARTITIONS, PartitionSettings

METHOD = '''
from dataclasses import dataclass
from typing import ClassVar
from suture.methods.fedavg import FedAvg
from suture.settings import NonNegative


@dataclass(frozen=True)
class Mine(FedAvg):
    """FedAvg, shrunk."""

    name: ClassVar[str] = "mine"
    summary: ClassVar[str] = "FedAvg whose models shrink"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
    shrink: NonNegative = 0.0
    """By how much."""

    def hand_out(self, server, ids):
        handed = super().hand_out(server, ids)
        return type(handed)(handed.ids, {k: v * (1 - self.shrink) for k, v in handed.params.items()})
'''
OTHERS = '''
import numpy as np
from torch_geometric.data import Data
from suture.core.metrics import of_one
from suture.graph.synthetic import contextual_block_model
from suture.nn.backbones import Gcn

CALLS = []


class Doubled(Gcn):
    """A GCN whose outputs are doubled."""

    def logits(self, params, graph, rng=None, view=None):
        return 2 * super().logits(params, graph, rng, view)


def by_degree(data, settings, rng):
    """Clients of nodes with alike degrees."""
    degree = np.bincount(data.edge_index[0].numpy(), minlength=data.num_nodes)
    return np.array_split(np.argsort(degree, kind="stable"), settings.clients)


def tiny(nodes: int = 90, homophily: float = 0.9, loud: bool = False):
    """A small block model."""
    return contextual_block_model(nodes=nodes, classes=3, features=20, homophily=homophily, degree=3.0)


def alone():
    """Takes nothing, gives nothing."""
    raise ValueError("not today")


@of_one("error_free", "Share of clients' roles without any mistake")
def error_free(logits, y):
    return float((logits.argmax(1) == y).all())


@of_one("first_half", "Accuracy of the first half")
def first_half(logits, y):
    half = max(1, len(y) // 2)
    return float((logits.argmax(1) == y)[:half].float().mean())
'''
SMALL = ["rounds=3", "hidden=8"]


@dataclass(frozen=True)
class InMemory(FedAvg):
    """FedAvg by another name."""

    name: ClassVar[str] = "in_memory"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
    extra: float = 1.0
    """Does nothing."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "others.py").write_text(OTHERS)
    return tmp_path


@pytest.fixture(scope="module")
def graph() -> Data:
    return contextual_block_model(nodes=150, classes=3, features=20)


@pytest.fixture
def cli(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


CSBM = (
    "--dataset",
    "csbm:nodes=240,features=20,words_per_node=5",
    "--clients",
    "2",
    "--set",
    "rounds=2",
    "--set",
    "hidden=8",
    "-q",
)


# In Python


def test_a_class_is_run_and_compared(graph: Data) -> None:
    result = suture.run(graph, InMemory, clients=2, overrides=[*SMALL, "in_memory.extra=2.5"])
    assert result.outcome.method == "in_memory"
    assert result.finished.method.extra == 2.5
    both = suture.compare(graph, ["fedavg", InMemory], clients=2, seeds=[0], overrides=SMALL)
    fedavg, mine = both.outcomes
    assert mine.accuracy_client_mean == fedavg.accuracy_client_mean
    assert [outcome.method for outcome in both.outcomes] == ["fedavg", "in_memory"]


def test_a_class_in_no_file_must_be_given_again(graph: Data, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Local(FedAvg):
        """Found nowhere."""

        name: ClassVar[str] = "nowhere"

    stop = api.Options(stop=lambda: True)
    with pytest.raises(Interrupted):
        suture.run(graph, Local, clients=2, overrides=SMALL, out=tmp_path / "run", options=stop)
    with pytest.raises(ConfigError, match=r"nowhere of .* was a class in memory; call suture\.resume\(path, methods="):
        suture.resume(tmp_path / "run", graph)
    done = suture.resume(tmp_path / "run", graph, methods=[Local])
    whole = suture.run(graph, Local, clients=2, overrides=SMALL)
    assert done.outcomes[0].accuracy_client_mean == whole.outcome.accuracy_client_mean


def test_letting_in_leaves_the_door_as_it_was() -> None:
    more = DOOR.letting_in(InMemory)
    assert more.by_name("in_memory") is InMemory
    assert "in_memory" not in DOOR.names()
    with pytest.raises(ConfigError, match="unknown method 'in_memory'"):
        DOOR.by_name("in_memory")


# By file and by module


def test_a_file_on_the_command_line(cli: Callable[..., tuple[int, str, str]], here: Path) -> None:
    code, _, err = cli("run", "--method", "mine.py:Mine", *CSBM, "--set", "mine.shrink=0.5", "--out", "r")
    assert code == 0, err
    noted = json.loads((here / "r" / "run.json").read_text())["plugins"]
    assert [(one["kind"], one["name"], one["spelling"]) for one in noted] == [("method", "mine", f"{here}/mine.py:Mine")]
    for command in ("show", "privacy", "resume"):
        code, out, err = cli(command, "r")
        assert code == 0 and "mine" in out, err
    assert cli("export", "r", "--out", "m.safetensors")[0] == 0
    code, out, _ = cli("methods", "mine.py:Mine")
    assert code == 0 and "FedAvg whose models shrink" in out and "--set mine.shrink=0.0" in out and "By how much" in out


def test_a_module_on_the_command_line(
    cli: Callable[..., tuple[int, str, str]], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.py").rename(here / "their_module.py")
    monkeypatch.syspath_prepend(str(here))
    code, out, err = cli("compare", "--methods", "fedavg,their_module:Mine", "--seeds", "0", *CSBM, "--out", "c")
    assert code == 0 and "mine" in out, err
    assert (here / "c" / "mine-seed0" / "result.json").exists()
    del sys.modules["their_module"]


def test_a_config_file_may_name_one(cli: Callable[..., tuple[int, str, str]], here: Path) -> None:
    (here / "c.toml").write_text('[methods]\nrun = ["fedavg", "mine.py:Mine"]\n[methods.mine]\nshrink = 0.25\n')
    code, _, err = cli("compare", "--config", "c.toml", *CSBM, "--dry-run")
    assert code == 2 and "suture trust" in err  # files may be somebody else's
    assert cli("trust", "c.toml")[0] == 0
    code, out, err = cli("compare", "--config", "c.toml", *CSBM, "--dry-run")
    assert code == 0 and "shrink = 0.25" in out, err


def test_backbone_partition_dataset_and_metric(cli: Callable[..., tuple[int, str, str]], here: Path) -> None:
    code, out, err = cli(
        *("run", "--method", "fedavg", "--dataset", "others.py:tiny:nodes=80,loud=true", "--clients", "2", "-q"),
        *("--set", "model.kind=others.py:Doubled", "--set", "partition.kind=others.py:by_degree"),
        *("--set", "evaluation.metric=others.py:first_half", "--set", "rounds=2", "--set", "hidden=8", "--out", "r"),
        *("--set", "preprocess.largest_component=false"),
    )
    assert code == 0, err
    assert "Accuracy of the first half in %" in out
    assert json.loads((here / "r" / "result.json").read_text())["metric"] == "first_half"
    noted = {one["kind"]: one["spelling"] for one in json.loads((here / "r" / "run.json").read_text())["plugins"]}
    assert set(noted.values()) == {f"{here}/others.py:{name}" for name in ("Doubled", "by_degree", "tiny", "first_half")}
    assert sum(map(len, load_manifest(here / "r" / "manifest.json").partition.members)) == 80
    code, out, err = cli("export", "r", "--out", "m.safetensors")
    assert code == 0 and "YourNetwork" in out, err
    assert cli("show", "r")[0] == 0
    assert cli("data", "info", "others.py:tiny")[0] == 0


def test_a_folder_is_named_after_the_file_of_a_dataset(cli: Callable[..., tuple[int, str, str]], here: Path) -> None:
    code, _, err = cli("run", "--dataset", "others.py:tiny", "--clients", "2", "--set", "rounds=1", "-q")
    assert code == 0, err
    (made,) = (here / "runs").iterdir()
    assert made.name.endswith("-others-own")


# Found again


def test_resume_finds_the_file_from_elsewhere_and_refuses_another(
    here: Path, graph: Data, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asked = {"clients": 2, "overrides": SMALL}
    for name in ("run", "changed", "moved"):
        with pytest.raises(Interrupted):
            suture.run(graph, "mine.py:Mine", out=here / name, options=api.Options(stop=lambda: True), **asked)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    whole = suture.run(graph, f"{here}/mine.py:Mine", **asked)
    assert suture.resume(here / "run", graph).outcomes[0].accuracy_client_mean == whole.outcome.accuracy_client_mean
    (here / "mine.py").write_text(METHOD.replace("shrunk", "shrunken"))
    with pytest.raises(ConfigError, match="which has changed since you let it in"):
        suture.resume(here / "run", graph)
    suture.trust(here / "run")
    with pytest.raises(IntegrityError, match=r"mine\.py:Mine has changed since this run was begun .*: restore it"):
        suture.resume(here / "changed", graph)
    assert suture.resume(here / "run", graph).outcomes[0].method == "mine"  # finished: only read
    (here / "mine.py").unlink()
    with pytest.raises(ConfigError, match=r"the method mine of .*moved was in .*mine\.py, which is not there any more"):
        suture.resume(here / "moved", graph)


def test_a_renamed_method_is_not_taken_for_the_old_one(here: Path, graph: Data) -> None:
    suture.run(graph, "mine.py:Mine", clients=2, overrides=SMALL, out=here / "run")
    (here / "mine.py").write_text(METHOD.replace('"mine"', '"yours"'))
    suture.trust(here / "run")
    with pytest.raises(IntegrityError, match="ran mine, which is now called yours"):
        suture.resume(here / "run", graph)


def test_spellings_of_things(here: Path) -> None:
    let_in(["mine.py:Mine"])
    assert spelling_of(load("mine.py:Mine")) == f"{here}/mine.py:Mine"
    assert spelling_of(FedAvg) == f"{FedAvg.__module__}:FedAvg"
    assert spelling_of(lambda: None) == ""
    assert load("mine.py:Mine") is load("mine.py:Mine")


# One sentence for every mistake

HEAD = "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom suture.method import Method\n"
HEAD += "from suture.methods.fedavg import FedAvg\n@dataclass(frozen=True)\n"


@pytest.mark.parametrize(
    ("asked", "content", "sentence"),
    [
        ("nowhere.py:Mine", None, r"there is no file .*/nowhere\.py; check the path$"),
        ("x.py", "", r"the method x\.py must also say which name is meant, such as x\.py:NAME$"),
        ("x.py:Mine", "1 / 0", r"x\.py:Mine cannot be imported \(ZeroDivisionError: division by zero\); repair that file$"),
        ("x.py:Mine", "raise SystemExit(7)", r"x\.py:Mine cannot be imported \(SystemExit: 7\)"),
        ("x.py:Mine", "def (", r"x\.py:Mine cannot be imported \(SyntaxError: "),
        (
            "no.such.module:Mine",
            None,
            r"no\.such\.module:Mine cannot be imported \(ModuleNotFoundError: No module named 'no'",
        ),
        ("x.py:Mien", "class Mine: pass", r"unknown name in x\.py 'Mien': did you mean 'Mine'\? known: Mine$"),
        (
            "x.py:Mine",
            "class Mine: pass",
            r"x\.py:Mine is no method: it must be a class that inherits from suture\.method\.Method$",
        ),
        ("x.py:f", "def f(): pass", r"x\.py:f is no method"),
        (
            "x.py:Mine",
            HEAD + "class Mine(Method):\n    name: ClassVar[str] = 'mine'\n",
            r"x\.py:Mine is not complete: write assemble, deploy, init_clients, init_server, plan, or inherit",
        ),
        ("x.py:Mine", HEAD + "class Mine(FedAvg): pass", r"x\.py:Mine has no name of its own; write in it, .* 'mine'$"),
        (
            "x.py:Mine",
            HEAD + "class Mine(FedAvg):\n    name: ClassVar[str] = 'Mi ne'",
            r"is called 'Mi ne'; a method's name is",
        ),
        (
            "x.py:Mine",
            HEAD + "class Mine(FedAvg):\n    name: ClassVar[str] = 'fedprox'",
            r"x\.py:Mine calls itself 'fedprox', but a method of that name comes with Suture; give it another name$",
        ),
        (
            "x.py:Mine",
            HEAD + "class Mine(FedAvg):\n    name: ClassVar[str] = 'training'",
            r"x\.py:Mine is called 'training', which is a reserved name",
        ),
        (
            "x.py:Mine",
            HEAD + "class Mine(FedAvg):\n    name: ClassVar[str] = 'mine'\n    weight: float = 1.0",
            r"x\.py:Mine is refused: Mine\.weight is a reserved name: .*; rename the field",
        ),
        (
            "x.py:Mine",
            HEAD.replace("@dataclass(frozen=True)\n", "") + "class Mine(FedAvg):\n    name = 'mine'\n    mu: float = 1.0",
            r"x\.py:Mine must be decorated with @dataclass\(frozen=True\)",
        ),
        ("fedavgg", None, r"unknown method 'fedavgg': did you mean 'fedavg'\? known: "),
    ],
)
def test_a_wrong_method(
    cli: Callable[..., tuple[int, str, str]], here: Path, asked: str, content: str | None, sentence: str
) -> None:
    if content is not None:
        (here / "x.py").write_text(content)
    for command in (
        ("run", "--method", asked, *CSBM),
        ("compare", "--methods", f"fedavg,{asked}", *CSBM),
        ("methods", asked),
    ):
        code, out, err = cli(*command)
        if command[0] == "methods" and "comes with Suture" in sentence:
            continue  # to look at it is not to run it
        assert code == 2 and out == "", (command, out)
        assert re.search(sentence, err.strip()), err
        assert err.count("\n") == 1 and "Traceback" not in err
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--set", "model.kind=others.py:by_degree"), "others.py:by_degree is no backbone"),
        (("--set", "model.kind=others.py:Nothing"), "unknown name in"),
        (("--set", "partition.kind=others.py:Doubled"), "is no partition: it must be a function"),
        (("--set", "partition.kind=others.py:alone"), "is no partition: it must take 3 arguments"),
        (("--set", "partition.kind=others.py:tiny"), "others.py:tiny fails (TypeError: "),
        (("--dataset", "others.py:alone"), "others.py:alone cannot be made (ValueError: not today); repair its function"),
        (("--set", "evaluation.metric=others.py:tiny"), "is no metric"),
        (
            ("--protocol", "fedpub-link", "--set", "evaluation.metric=mae"),
            "the metric mae is for numbers of nodes, not for links",
        ),
        (("--set", "evaluation.metric=acuracy"), "unknown evaluation.metric 'acuracy': did you mean 'accuracy'?"),
        (("--dataset", "others.py:Doubled"), "is no dataset: it must be a function"),
        (("--dataset", "others.py:tiny:size=4"), "unknown argument of others.py:tiny 'size'"),
        (("--dataset", "others.py:tiny:loud=4"), "loud must be true or false, got '4'"),
        (("--dataset", "others.py:by_degree"), "is no dataset: it must take 0 arguments"),
        (("--protocol", "others.py:CALLS"), "is no protocol: it must be the path of a .toml file"),
    ],
)
def test_a_wrong_thing_at_another_door(
    cli: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], sentence: str
) -> None:
    base = ("run", *(() if "--dataset" in arguments else CSBM[:2]), "--clients", "2", "--set", "rounds=1", "-q")
    code, _, err = cli(*base, *arguments)
    assert code == 2, err
    assert sentence in err and err.count("\n") == 1, err


def test_two_of_the_same_name(cli: Callable[..., tuple[int, str, str]], here: Path) -> None:
    shutil.copy(here / "mine.py", here / "also.py")
    code, _, err = cli("compare", "--methods", "mine.py:Mine,also.py:Mine", *CSBM)
    assert code == 2 and "also.py:Mine calls itself 'mine', but a method of that name was given as well" in err
    code, _, err = cli("compare", "--methods", "mine.py:Mine,mine.py:Mine", *CSBM)
    assert code == 2 and "methods must be one or several, all different, got mine, mine" in err


# Reserved names


@pytest.mark.parametrize(
    "name", ["weight", "steps", "model", "training", "plan", "round", "name", "combine", "sums", "seen"]
)
def test_reserved_names_are_refused_when_a_method_is_defined(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"Mine\.{name} is a reserved name: .* rename the field"):
        type("Mine", (FedAvg,), {"__annotations__": {name: "float"}, name: 1.0, "__qualname__": "Mine"})


def test_a_hyper_parameter_may_get_another_default() -> None:
    type("Mine", (InMemory,), {"__annotations__": {"extra": float}, "extra": 3.0})
    type("Mine", (FedAvg,), {"__annotations__": {"name": "ClassVar[str]"}, "name": "mine"})


# Metrics


def test_a_metric_of_one_group_is_the_vectorised_one() -> None:
    simple = of_one("simple")(lambda logits, y: float((logits.argmax(1) == y).double().mean()))
    rng = np.random.default_rng(0)
    logits, y, group = torch.tensor(rng.normal(size=(60, 3))), torch.tensor(rng.integers(0, 3, 60)), rng.integers(0, 5, 60)
    group = torch.tensor(np.where(group == 2, 3, group))
    mine, ours = simple.measure(logits, y, group, 6), ACCURACY.measure(logits, y, group, 6)
    torch.testing.assert_close(mine, ours, equal_nan=True, rtol=0, atol=0)
    assert bool(ours[2].isnan()) and bool(ours[5].isnan())


def test_accuracy_by_name_is_what_auto_takes(graph: Data) -> None:
    asked = {"clients": 3, "overrides": SMALL}
    first = suture.run(graph, "fedavg", **asked).outcome
    named = suture.run(graph, "fedavg", clients=3, overrides=[*SMALL, "evaluation.metric=accuracy"]).outcome
    assert first.as_json() | {"seconds": 0} == named.as_json() | {"seconds": 0}


# The doors themselves


def test_settings_repeat_the_names_that_come_with_suture() -> None:
    """Settings are read before torch is, so they cannot ask the doors."""
    from suture.core.metrics import DOOR as METRIC_DOOR
    from suture.graph.partition import DOOR as PARTITION_DOOR
    from suture.graph.partition import GIVEN

    assert set(BACKBONES.shipped) == set(OUR_BACKBONES)
    assert set(METRICS.shipped) == {"auto", *METRIC_DOOR.shipped}
    assert set(PARTITIONS.shipped) == {*GIVEN, *PARTITION_DOOR.shipped}
    for choice, door in ((METRICS, METRIC_DOOR), (PARTITIONS, PARTITION_DOOR)):
        assert choice.group == door.group


@pytest.mark.parametrize("groups", [[], [[]], [[0, 1], [150]], [[-1]], "ab", [["a"]]])
def test_a_partition_of_others_is_checked(groups: object, graph: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("wrong_partition")
    module.cut = lambda data, settings, rng: groups
    monkeypatch.setitem(sys.modules, "wrong_partition", module)
    let_in(["wrong_partition:cut"])
    with pytest.raises(suture.SutureError, match="the partition wrong_partition:cut must give"):
        make_partition(graph, PartitionSettings(kind="wrong_partition:cut", clients=2), 0)


def test_nothing_is_installed_here() -> None:
    """The other file tests installed packages, in processes of their own."""
    assert not installed("suture.methods")
    assert isinstance(DOOR, Door)


def test_a_file_that_is_edited_while_a_run_goes_on_does_not_change_it(here: Path) -> None:
    from suture.nn.backbones import DOOR as NETWORKS

    let_in([f"{here}/others.py:Doubled"])
    before = NETWORKS.find(f"{here}/others.py:Doubled")
    (here / "others.py").write_text(OTHERS.replace("2 * super()", "3 * super()"))
    assert NETWORKS.recall(f"{here}/others.py:Doubled") is before
    let_in([f"{here}/others.py:Doubled"])
    after = NETWORKS.find(f"{here}/others.py:Doubled")
    assert after is not before
    assert NETWORKS.recall(f"{here}/others.py:Doubled") is after
