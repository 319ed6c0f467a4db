from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from suture.config.layers import SECTIONS, SHIPPED, load_config, load_protocol, protocol_names
from suture.config.resolve import Resolved, resolve, to_toml
from suture.errors import ConfigError
from suture.methods import own_fields
from suture.methods.fedggr.method import FedGgr
from suture.settings import ModelSettings, Protocol, TrainingSettings

METHODS = {
    "fedavg": frozenset[str](),
    "fedprox": frozenset({"mu"}),
    "fedpub": frozenset({"tau", "l1", "lambda2"}),
    "feddep": frozenset({"d_z"}),
}
WriteToml = Callable[[str], Path]


def resolved(protocol: str | Path = "fedpub-disjoint", dataset: str = "cora", *sets: str, **options: object) -> Resolved:
    return resolve(protocol, dataset, sets, method_fields=METHODS, **options)  # type: ignore[arg-type]


@pytest.fixture
def write(tmp_path: Path) -> WriteToml:
    def write_toml(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_toml


def test_the_fourteen_protocols_are_shipped() -> None:
    assert protocol_names() == (
        "feddep-louvain",
        "fedggr-random",
        "fedgls-graphless",
        "fedpub-disjoint",
        "fedpub-imbalanced",
        "fedpub-link",
        "fedpub-louvain",
        "fedpub-overlap",
        "fedpub-random",
        "fedpub-synthetic",
        "fedsage-louvain",
        "given-splits",
        "lost-links",
        "own",
    )


@pytest.mark.parametrize("name", protocol_names())
def test_shipped_protocol_writes_out_every_value(name: str) -> None:
    written = tomllib.loads((SHIPPED[name]).read_text())
    assert set(written) - {"dataset", "methods"} == {f.name for f in dataclasses.fields(Protocol)} - {"tuned"}
    assert {section: set(written[section]) for section in SECTIONS} == {s: set(keys) for s, keys in SECTIONS.items()}
    assert written["name"] == name


@pytest.mark.parametrize("name", protocol_names())
def test_shipped_protocol_says_where_every_value_comes_from(name: str) -> None:
    """Each value of the sections carries a trailing comment; dataset tables may share one comment above them."""
    text = (SHIPPED[name]).read_text().split("[dataset.")[0]
    values = [line for line in text.splitlines() if re.match(r"\w+ = ", line)]
    bare = [line for line in values if not re.search(r"# .*(paper|code|ours|unused)", line)]
    assert [line.split(" = ")[0] for line in bare if not line.startswith(("name", "description", "d_z"))] == []


@pytest.mark.parametrize("name", protocol_names())
@pytest.mark.parametrize("dataset", ["cora", "computers", "photo", "arxiv", "flickr", "cs", "csbm:nodes=100"])
def test_shipped_protocol_resolves_for_every_dataset(name: str, dataset: str) -> None:
    assert resolved(name, dataset).protocol.name == name


# Numbers below were copied by hand from the five papers.

ROUNDS_AND_EPOCHS = [
    ("fedpub-disjoint", "cora", 100, 1),
    ("fedpub-disjoint", "pubmed", 100, 1),
    ("fedpub-disjoint", "computers", 200, 3),
    ("fedpub-overlap", "photo", 200, 2),
    ("fedpub-overlap", "arxiv", 200, 2),
    ("fedsage-louvain", "pubmed", 50, 1),
    ("fedgls-graphless", "citeseer", 100, 5),
    ("fedgls-graphless", "pubmed", 200, 5),
    ("fedgls-graphless", "flickr", 300, 5),
    ("fedgls-graphless", "arxiv", 2000, 5),
]


@pytest.mark.parametrize(("name", "dataset", "rounds", "epochs"), ROUNDS_AND_EPOCHS)
def test_printed_rounds_and_local_epochs(name: str, dataset: str, rounds: int, epochs: int) -> None:
    training = resolved(name, dataset).protocol.training
    assert (training.rounds, training.local_epochs) == (rounds, epochs)


def test_printed_clients() -> None:
    sizes = {d: resolved("fedgls-graphless", d).protocol.partition.clients for d in ("cora", "citeseer", "pubmed")}
    assert sizes == {"cora": 8, "citeseer": 8, "pubmed": 16}
    assert resolved("fedgls-graphless", "flickr").protocol.partition.clients == 20
    assert resolved("fedgls-graphless", "arxiv").protocol.partition.clients == 16
    assert resolved("fedgls-graphless").protocol.partition.graphless_fraction == 0.5
    overlap = resolved("fedpub-overlap").protocol.partition
    assert (overlap.clients, overlap.overlap_copies, overlap.overlap_fraction) == (30, 5, 0.5)


@pytest.mark.parametrize(
    ("name", "dataset", "shares"),
    [
        ("fedsage-louvain", "cora", (0.6, 0.2, 0.2)),
        ("feddep-louvain", "cora", (0.6, 0.2, 0.2)),
        ("fedggr-random", "cora", (0.6, 0.2, 0.2)),
        ("fedgls-graphless", "cora", (0.6, 0.2, 0.2)),
        ("fedpub-disjoint", "cora", (0.2, 0.4, 0.4)),
        ("fedpub-disjoint", "arxiv", (0.05, 0.475, 0.475)),
    ],
)
def test_printed_splits(name: str, dataset: str, shares: tuple[float, float, float]) -> None:
    split = resolved(name, dataset).protocol.split
    assert (split.train, split.val, split.test) == shares


@pytest.mark.parametrize(
    ("name", "model", "hidden", "optimizer", "lr", "batch", "fanouts", "repetitions", "graph"),
    [
        ("fedsage-louvain", "sage", None, "adam", 0.001, 64, (5, 5), 5, "global"),
        ("feddep-louvain", "sage", None, "sgd", 0.1, 32, (5, 5), 3, "global"),
        ("fedgls-graphless", "gcn", 16, "adam", 0.01, 0, (), 5, "client"),
        ("fedpub-disjoint", "gcn", 128, "adam", None, 0, (), 3, "client"),
        ("fedggr-random", "gcn", None, "adam", 0.01, 0, (), 5, "client"),
    ],
)
def test_printed_training(
    name: str,
    model: str,
    hidden: int | None,
    optimizer: str,
    lr: float | None,
    batch: int,
    fanouts: tuple[int, ...],
    repetitions: int,
    graph: str,
) -> None:
    """`None` marks what the paper does not print, or what its code contradicts."""
    p = resolved(name).protocol
    assert (p.model.kind, p.model.layers, p.training.optimizer, p.evaluation.graph) == (model, 2, optimizer, graph)
    assert (p.training.batch_size, p.training.fanouts, len(p.seeds)) == (batch, fanouts, repetitions)
    assert hidden in (None, p.model.hidden)
    assert lr in (None, p.training.lr)


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "computers"])
def test_fedggr_stays_in_its_papers_grid(dataset: str) -> None:
    found = resolve("fedggr-random", dataset, method_fields={"fedggr": own_fields(FedGgr)})
    chosen = found.methods.get("fedggr", {})
    assert found.protocol.model.hidden in (64, 128, 256)
    assert found.protocol.training.lr in (0.001, 0.01)
    assert chosen.get("k", FedGgr.k) in range(5, 45, 5)
    widths = {chosen.get("local_width", FedGgr.local_width), chosen.get("global_width", FedGgr.global_width)}
    assert widths <= {64, 128, 256}
    assert found.protocol.training.local_epochs == (3 if dataset == "computers" else 1)  # Table 3


@pytest.mark.parametrize("name", protocol_names())
def test_a_dataset_nobody_knows_gets_what_all_get(name: str) -> None:
    """What differs for a known one is what its paper prints: rounds, epochs, clients, shares, widths, and the metric."""
    printed = {"rounds", "local_epochs", "clients", "train", "val", "test", "metric"}
    plain = resolved(name, "nobodys")
    for dataset in (
        "cora",
        "citeseer",
        "pubmed",
        "computers",
        "photo",
        "cs",
        "arxiv",
        "wikics",
        "actor",
        "tolokers",
        "flickr",
    ):
        found = resolved(name, dataset)
        for section in SECTIONS:
            mine, others = (vars(getattr(each.protocol, section)) for each in (found, plain))
            assert {key for key, value in mine.items() if value != others[key]} <= printed, (dataset, section)
        for method, values in found.methods.items():
            assert {key for key, value in values.items() if plain.methods.get(method, {}).get(key) != value} <= {"d_z"}


def test_values_that_a_paper_gives_to_a_method() -> None:
    assert resolved("fedpub-disjoint").methods["fedpub"] == {"tau": 3}
    assert resolved("fedpub-overlap").methods["fedpub"] == {"tau": 5}
    assert resolved("feddep-louvain", "citeseer").methods["feddep"] == {"d_z": 64}


def test_shipped_protocol_may_name_methods_that_are_not_installed() -> None:
    assert resolve("fedpub-overlap", "cora", method_fields={"fedavg": frozenset()}).methods == {}


def test_shipped_protocol_may_not_misname_a_hyper_parameter() -> None:
    with pytest.raises(ConfigError, match="unknown fedpub key 'tau': known: model, temperature"):
        resolve("fedpub-overlap", "cora", method_fields={"fedpub": frozenset({"temperature"})})


def test_each_source_overrides_the_one_before(write: WriteToml) -> None:
    def rounds(dataset: str, *sets: str, config: bool = False) -> int:
        path = write("[training]\nrounds = 7\n") if config else None
        return resolved("fedpub-disjoint", dataset, *sets, config_file=path).protocol.training.rounds

    assert rounds("cora") == 100
    assert rounds("computers") == 200
    assert rounds("computers", config=True) == 7
    assert rounds("computers", "rounds=9", config=True) == 9
    assert rounds("computers", "rounds=9", "training.rounds=11") == 11


def test_a_source_leaves_its_neighbours_alone(write: WriteToml) -> None:
    plain = resolved("fedpub-disjoint", "computers").protocol
    changed = resolved("fedpub-disjoint", "computers", config_file=write("[training]\nlr = 1\n")).protocol
    assert changed == dataclasses.replace(plain, training=dataclasses.replace(plain.training, lr=1.0))


def test_method_tables_are_merged_key_by_key(write: WriteToml) -> None:
    path = write("[methods.fedpub]\nl1 = 0.1\n[methods.fedprox]\nmu = 1.0\n")
    assert resolved("fedpub-overlap", "cora", "fedprox.mu=0.5", config_file=path).methods == {
        "fedpub": {"tau": 5, "l1": 0.1},
        "fedprox": {"mu": 0.5},
    }


def test_dataset_is_looked_up_without_its_arguments_and_case() -> None:
    assert resolved(dataset="Computers:root=x").protocol.training.rounds == 200


def test_clients_option_overrides_the_dataset_table_and_the_config_file(write: WriteToml) -> None:
    path = write("[partition]\nclients = 3\n")
    assert resolved("fedgls-graphless", "pubmed", config_file=path, clients=4).protocol.partition.clients == 4


def test_clients_option_and_set_may_not_disagree() -> None:
    with pytest.raises(ConfigError, match=r"--clients 4 and --set clients=5 both set partition\.clients"):
        resolved("fedpub-disjoint", "cora", "clients=5", clients=4)


@pytest.mark.parametrize(
    ("text", "section", "key", "value"),
    [
        ("rounds=20", "training", "rounds", 20),
        ("training.lr=0.1", "training", "lr", 0.1),
        ("lr = 1e-3", "training", "lr", 1e-3),
        ("lr=1", "training", "lr", 1.0),
        ("optimizer=sgd", "training", "optimizer", "sgd"),
        ('optimizer="sgd"', "training", "optimizer", "sgd"),
        ("row_normalise=false", "preprocess", "row_normalise", False),
        ("evaluation.model=aggregated", "evaluation", "model", "aggregated"),
        ("file=a/b=c.csv", "partition", "file", "a/b=c.csv"),
        ("file=2020-01-01", "partition", "file", "2020-01-01"),
    ],
)
def test_set_reads_toml_values_and_bare_words(text: str, section: str, key: str, value: object) -> None:
    got = getattr(getattr(resolved("fedpub-disjoint", "cora", text).protocol, section), key)
    assert (got, type(got)) == (value, type(value))


def test_set_reads_lists() -> None:
    p = resolved("fedsage-louvain", "cora", "fanouts=[3,4,5]", "layers=3", "seeds=[7]").protocol
    assert (p.training.fanouts, p.seeds) == ((3, 4, 5), (7,))


@pytest.mark.parametrize("text", ["fedprox.mu=0.1", "methods.fedprox.mu=0.1"])
def test_set_reaches_methods(text: str) -> None:
    assert resolved("fedggr-random", "cora", text).methods == {"fedprox": {"mu": 0.1}}


def test_one_methods_network_may_differ(write: WriteToml) -> None:
    protocol = write("[model]\nhidden = 8\n[methods.fedprox]\nmu = 1.0\n[methods.fedprox.model]\nhead = true\nhidden = 32\n")
    outcome = resolved(protocol, "cora", "model.kind=sage")
    assert outcome.protocol.model == ModelSettings(kind="sage", hidden=8) == outcome.model_of("fedavg")
    assert outcome.model_of("fedprox") == ModelSettings(kind="sage", hidden=32, head=True)
    assert outcome.methods == {"fedprox": {"mu": 1.0}}


def test_what_is_set_later_for_every_network_holds_for_all(write: WriteToml) -> None:
    protocol = write("[methods.fedprox.model]\nhead = true\nhidden = 32\n")
    assert resolved(protocol, "cora", "model.hidden=16").model_of("fedprox") == ModelSettings(hidden=16, head=True)
    assert resolved(protocol, "cora", "model.hidden=16", "fedprox.model.hidden=24").model_of("fedprox").hidden == 24


def test_one_methods_training_may_differ(write: WriteToml) -> None:
    protocol = write("[training]\nlr = 0.5\n[methods.fedprox.training]\nlr = 0.1\nrounds = 7\n")
    outcome = resolved(protocol, "cora", "training.local_epochs=3", "fedavg.training.optimizer=sgd")
    assert outcome.protocol.training == TrainingSettings(lr=0.5, local_epochs=3) == outcome.training_of("fedpub")
    assert outcome.training_of("fedprox") == TrainingSettings(lr=0.1, rounds=7, local_epochs=3)
    assert outcome.training_of("fedavg") == TrainingSettings(lr=0.5, local_epochs=3, optimizer="sgd")
    assert outcome.protocol_of("fedprox") == dataclasses.replace(outcome.protocol, training=outcome.training_of("fedprox"))
    assert outcome.methods == {} and outcome.model_of("fedprox") == outcome.protocol.model


def test_what_is_set_later_for_all_training_holds_for_all(write: WriteToml) -> None:
    protocol = write(
        "[methods.fedprox.training]\nlr = 0.1\nrounds = 7\n[dataset.cora.training]\nlr = 0.2\n"
        "[dataset.pubmed.methods.fedprox.training]\nlr = 0.3\n"
    )
    assert resolved(protocol, "citeseer").training_of("fedprox") == TrainingSettings(lr=0.1, rounds=7)
    assert resolved(protocol, "cora").training_of("fedprox") == TrainingSettings(lr=0.2, rounds=7)
    assert resolved(protocol, "pubmed").training_of("fedprox") == TrainingSettings(lr=0.3, rounds=7)
    assert resolved(protocol, "pubmed", "lr=0.4").training_of("fedprox") == TrainingSettings(lr=0.4, rounds=7)
    in_order = resolved(protocol, "pubmed", "lr=0.4", "methods.fedprox.training.lr=0.5", "rounds=9")
    assert in_order.training_of("fedprox") == TrainingSettings(lr=0.5, rounds=9)
    assert resolved(protocol, "pubmed", "fedprox.training.lr=0.5", "lr=0.4").training_of("fedprox").lr == 0.4


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        (
            "[methods.fedprox.training]\nfanouts = [5, 5]\nbatch_size = 8\n",
            "methods.fedprox.training",
            "training.fanouts = [5, 5] needs model.kind sage, got gcn: set model.kind=sage, or training.fanouts=[]",
        ),
        (
            "[methods.fedprox.training]\nfanouts = [5]\nbatch_size = 8\n[methods.fedprox.model]\nkind = 'sage'\n",
            "methods.fedprox",
            "training.fanouts = [5] must hold one number for each layer, got model.layers = 2",
        ),
    ],
)
def test_one_methods_training_must_fit_the_protocol(write: WriteToml, text: str, place: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolved(write(text))
    assert str(error.value).endswith(f"everything applied: {place}: {sentence}")


def test_a_methods_sampling_may_come_with_its_network(write: WriteToml) -> None:
    text = "[methods.fedprox.training]\nfanouts = [5, 5]\nbatch_size = 8\n[methods.fedprox.model]\nkind = 'sage'\n"
    assert resolved(write(text)).training_of("fedprox").fanouts == (5, 5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[methods.fedprox.model]\nkind = "gat"\nhidden = 7\n',
            "model.hidden must be a multiple of model.heads, got 7 and 8",
        ),
        (
            'task = "link"\n[methods.fedprox.model]\nhidden = 7\n',
            "in link prediction all networks are compared with the same hidden width: set model.hidden",
        ),
    ],
)
def test_one_methods_network_must_fit_the_protocol(write: WriteToml, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolved(write(text))
    assert str(error.value).endswith(f"everything applied: methods.fedprox.model: {sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind=gcn", "'kind' alone does not say which value is meant: write partition.kind or model.kind"),
        (
            "model=gcn",
            "'model' alone does not say which value is meant: write evaluation.model or model.KEY with one of",
        ),
        ("mu=0.1", "'mu' alone does not say which value is meant: write fedprox.mu"),
        ("ronds=4", "unknown key 'ronds': did you mean 'rounds'?"),
        ("trainig.lr=1", "unknown section or method 'trainig': did you mean 'training'?"),
        ("training.lrr=1", "unknown training key 'lrr': did you mean 'lr'?"),
        ("fedprox.muu=1", "unknown fedprox key 'muu': did you mean 'mu'?"),
        ("methods.fedprx.mu=1", "unknown method 'fedprx': did you mean 'fedprox'?"),
        ("methods.fedprox=1", "a method's key is written methods.NAME.KEY"),
        ("fedprox.split.train=1", "a method's key is written methods.NAME.KEY"),
        ("fedprox.model.hiden=1", "unknown fedprox.model key 'hiden': did you mean 'hidden'?"),
        ("fedavg.lr=0.1", "lr is no hyper-parameter of fedavg: write fedavg.training.lr"),
        ("fedprox.hidden=8", "hidden is no hyper-parameter of fedprox: write fedprox.model.hidden"),
        ("fedprox.training.lrr=1", "unknown fedprox.training key 'lrr': did you mean 'lr'?"),
        ("fedprox.training.lr=0", "fedprox.training.lr must be a number > 0, got 0"),
        ("fedprox.model=1", "fedprox.model must be a table, got 1"),
        ("training.lr.x=1", "'training.lr.x' has too many dots"),
        ("rounds", "expected key=value, e.g. --set training.rounds=20"),
        ("name=mine", "unknown key 'name'"),
    ],
)
def test_set_refuses_keys_it_cannot_place(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolved("fedpub-disjoint", "cora", text)
    assert str(error.value).startswith(f"--set {text}: {sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rounds=0", "training.rounds must be an integer >= 1, got 0"),
        ('rounds="5"', 'training.rounds must be an integer >= 1, got "5"'),
        ("rounds=true", "training.rounds must be an integer >= 1, got true"),
        ("rounds=5.0", "training.rounds must be an integer >= 1, got 5.0"),
        ("lr=nan", "training.lr must be a number > 0, got nan"),
        ("lr=inf", "training.lr must be a number > 0, got inf"),
        ("dropout=1", "model.dropout must be a number >= 0 and < 1, got 1"),
        ("participation=0", "training.participation must be a number > 0 and <= 1, got 0"),
        ("head=1", "model.head must be true or false, got 1"),
        ("file=1", "partition.file must be a string, got 1"),
        ("fanouts=[5, 0]", "training.fanouts must be a list of integers >= 1, got [5, 0]"),
        ("fanouts=5", "training.fanouts must be a list of integers >= 1, got 5"),
        ("seeds=[]", "seeds must be a non-empty list of integers >= 0, got []"),
        ("model.kind=gnc", "unknown model.kind 'gnc': did you mean 'gcn'? known: gap, gat, gcn, gprgnn, mlp, sage"),
        ("model.kind=5", "model.kind must be one of gcn, sage, gat, gprgnn, mlp, gap, got 5"),
        (
            "rounds=__import__('os').getcwd()",
            "training.rounds must be an integer >= 1, got \"__import__('os').getcwd()\"",
        ),
        ("rounds=5\nlr=3", 'training.rounds must be an integer >= 1, got "5\\nlr=3"'),
    ],
)
def test_wrong_values_are_told_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolved("fedpub-disjoint", "cora", text)
    assert str(error.value) == f"--set {text}: {sentence}"


@pytest.mark.parametrize(
    ("protocol", "sets", "sentence"),
    [
        ("fedsage-louvain", ["batch_size=0"], r"fanouts = \[5, 5\] needs training\.batch_size > 0"),
        ("fedsage-louvain", ["model.kind=gcn"], r"fanouts = \[5, 5\] needs model\.kind sage, got gcn"),
        ("fedsage-louvain", ["layers=3"], r"one number for each layer, got model\.layers = 3"),
        ("fedpub-disjoint", ["train=0.3"], r"split\.train \+ split\.val \+ split\.test must be at most 1, got 1\.1"),
        ("fedpub-disjoint", ["model.kind=gat", "hidden=60"], r"multiple of model\.heads, got 60 and 8"),
        ("fedpub-disjoint", ["momentum=0.9"], r"momentum = 0\.9 needs training\.optimizer sgd, got adam: set"),
        ("fedpub-disjoint", ["clip=1", "dp_sigma=2"], r"clip = 1 would shorten .* set training\.dp_clip instead"),
        ("fedpub-disjoint", ["partition.kind=file"], r"set partition\.file"),
        ("fedpub-disjoint", ["seeds=[1, 2, 1]"], r"seeds must differ from one another, got \[1, 2, 1\]"),
    ],
)
def test_values_that_contradict_one_another(protocol: str, sets: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolved(protocol, "cora", *sets)


def test_values_that_only_contradict_before_everything_is_applied() -> None:
    sets = ("fanouts=[5, 5]", "batch_size=8", "model.kind=sage")
    assert resolved("fedpub-disjoint", "cora", *sets).protocol.training.fanouts == (5, 5)


def test_config_file_may_name_protocol_dataset_and_methods(write: WriteToml) -> None:
    config = load_config(write('protocol = "fedpub-overlap"\ndataset = "cora"\nmethods = ["fedavg", "fedprox"]\n'))
    assert (config.protocol, config.dataset, config.methods) == ("fedpub-overlap", "cora", ("fedavg", "fedprox"))
    config = load_config(write('[methods]\nrun = ["fedprox"]\n[methods.fedprox]\nmu = 0.1\n'))
    assert (config.protocol, config.methods, config.layer.methods) == (None, ("fedprox",), {"fedprox": {"mu": 0.1}})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[trainig]\nlr = 1\n", "unknown key 'trainig': did you mean 'training'?"),
        ("[training]\nrond = 1\n", "unknown training key 'rond': did you mean 'rounds'?"),
        ("[training]\nrounds = 0\n", "training.rounds must be an integer >= 1, got 0"),
        ("training = 3\n", "training must be a table, got 3"),
        ("[methods.fedprx]\nmu = 1\n", "unknown method 'fedprx': did you mean 'fedprox'?"),
        ("[methods.fedprox]\nmuu = 1\n", "unknown fedprox key 'muu': did you mean 'mu'?"),
        ("[methods]\nfedprox = 1\n", "methods.fedprox must be a table, got 1"),
        ('methods = ["fedavgg"]\n', "unknown method 'fedavgg': did you mean 'fedavg'?"),
        ("methods = [1]\n", "methods.run must be a list of strings, got [1]"),
        ("protocol = 1\n", "protocol must be a string, got 1"),
        ("rounds = \n", "is not valid TOML: "),
    ],
)
def test_config_file_errors_name_the_file(write: WriteToml, text: str, sentence: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as error:
        resolved(config_file=path)
    assert str(error.value).startswith(f"{path}: {sentence}")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read \(No such file or directory\)"):
        resolved(tmp_path / "none.toml")


def test_unknown_protocol_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown protocol .fedpub-disjont.: did you mean .fedpub-disjoint."):
        load_protocol("fedpub-disjont")


def test_own_protocol_file_stands_in_for_a_name(write: WriteToml) -> None:
    path = write("[training]\nrounds = 3\n[dataset.cora.training]\nlr = 0.5\n[dataset.cora.methods.fedprox]\nmu = 2\n")
    outcome = resolved(path)
    assert (outcome.protocol.name, outcome.protocol.training.rounds, outcome.protocol.training.lr) == ("mine", 3, 0.5)
    assert outcome.methods == {"fedprox": {"mu": 2}}
    assert resolved(str(path), "pubmed").protocol.training.lr == 0.01


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[dataset.cora.training]\nlrr = 1\n", " [dataset.cora]: unknown training key 'lrr': did you mean 'lr'?"),
        ("[dataset.pubmed.methods.fedprx]\nmu = 1\n", " [dataset.pubmed]: unknown method 'fedprx'"),
        ("[dataset]\ncora = 1\n", " [dataset.cora]: dataset.cora must be a table, got 1"),
        ("[methods.fedprx]\nmu = 1\n", ": unknown method 'fedprx': did you mean 'fedprox'?"),
        ("name = 1\n", ": name must be a string, got 1"),
    ],
)
def test_own_protocol_file_errors_name_the_place(write: WriteToml, text: str, sentence: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as error:
        resolved(path)
    assert str(error.value).startswith(f"{path}{sentence}")


@pytest.mark.parametrize("name", protocol_names())
def test_written_outcome_loads_to_itself(write: WriteToml, name: str) -> None:
    outcome = resolved(
        name,
        "computers",
        "fedprox.mu=1e-6",
        "fedprox.model.kind=sage",
        "lr=1e-5",
        "fedprox.training.lr=1e-4",
        "fedavg.training.momentum=0.5",
        "fedavg.training.optimizer=sgd",
        "seeds=[3, 4]",
    )
    assert resolved(write(to_toml(outcome)), "computers") == outcome


def test_written_outcome_keeps_awkward_text(write: WriteToml) -> None:
    plain = resolved().protocol
    awkward = 'quote " backslash \\ tab \t line \n bell \x07 del \x7f umlaut ü emoji 🙂'
    odd = Resolved(dataclasses.replace(plain, description=awkward), {"fedprox": {"mu": [1, {"a": True}]}})
    assert resolved(write(to_toml(odd))) == odd
