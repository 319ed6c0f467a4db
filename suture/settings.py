"""The typed values a protocol is made of: plain frozen dataclasses that `protocols/` fills and `config.py` checks.

Each field's docstring is what `suture methods` and `--dry-run` show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from suture.plugins import Choice


@dataclass(frozen=True)
class Search:
    """Where `suture tune` looks for a better value, beside the bounds of what it may be."""

    low: float = 0.0
    high: float = 1.0
    log: bool = True
    """Whether a factor counts, and not a difference."""
    choices: tuple[str | int | float | bool, ...] = ()
    """These values, and no range."""


# A value's bounds are its type. `config.strict` checks them while a dataclass is built from a file, `check_fields` when it
# has been built in Python.
Whole = Annotated[int, Field(ge=0)]
"""0, 1, 2, ..."""
Seed = Whole
Count = Annotated[int, Field(ge=1)]
"""1, 2, 3, ..."""
NonNegative = Annotated[float, Field(ge=0)]
"""At least 0."""
Positive = Annotated[float, Field(gt=0)]
"""Above 0."""
Share = Annotated[float, Field(ge=0, le=1)]
"""From 0 to 1, both included."""
PositiveShare = Annotated[float, Field(gt=0, le=1)]
"""Above 0, at most 1: a share that must not be empty."""
DroppedShare = Annotated[float, Field(ge=0, lt=1)]
"""At least 0, below 1: a share that must leave something."""
OpenShare = Annotated[float, Field(gt=0, lt=1)]
"""Between 0 and 1, neither included."""
Cosine = Annotated[float, Field(ge=-1, le=1)]
"""From -1 to 1, both included."""


# What others add is behind the same doors, so these are names, not literals; see `suture.plugins`.
PARTITIONS = Choice(
    "partition",
    "suture.partitions",
    (
        "auto",
        "louvain",
        "communities",
        "metis",
        "metis-overlap",
        "imbalanced",
        "random",
        "dirichlet",
        "streaming",
        "file",
        "given",
    ),
)
BACKBONES = Choice("backbone", "suture.backbones", ("gcn", "sage", "gat", "gprgnn", "mlp", "gap"))
METRICS = Choice(
    "metric",
    "suture.metrics",
    ("auto", "accuracy", "balanced_accuracy", "macro_f1", "roc_auc", "pr_auc", "log_loss", "ece", "mae", "r2"),
)


@dataclass(frozen=True)
class PreprocessSettings:
    """What is done to the whole graph before it is cut."""

    largest_component: bool = False
    """Keep only the largest connected component."""
    row_normalise: bool = False
    """Divide each node's features by their sum; a node with a negative one, as of word embeddings, keeps its own."""
    standardise: bool = False
    """Bring features to mean 0 and deviation 1, by sums over the owners; columns a schema marks, else all but 0/1 ones."""
    direction: Literal["mirror", "keep"] = "mirror"
    """mirror: every edge goes both ways; keep: edges of a directed graph keep their direction."""
    edge_weights: Literal["drop", "keep", "scaled"] = "drop"
    """Given edge weights; scaled: divided by their mean over all owners, as a node itself weighs 1."""


@dataclass(frozen=True)
class PartitionSettings:
    """How the graph is cut into clients."""

    kind: Annotated[str, PARTITIONS] = "metis"
    """auto: given owners, else metis; louvain: communities merged to similar sizes; communities: each of the largest is one
    client; given: data.client; streaming: in one stream of nodes, for graphs too large for METIS."""
    clients: Whole = 5
    """How many clients; 0 (with auto): as many as there are owners, or five."""
    overlap_copies: Count = 5
    """metis-overlap: clients sampled from each METIS part."""
    overlap_fraction: PositiveShare = 0.5
    """metis-overlap: share of a part's nodes that each of its clients samples."""
    dirichlet_alpha: Positive = 0.5
    """dirichlet: concentration; small values give each client few labels."""
    graphless_fraction: Share = 0.0
    """Share of clients whose edges are hidden, at training and test time."""
    boundary: Literal["none", "one-side", "both"] = "none"
    """Who knows of a link that the cut loses, and the name of its foreign end: nobody, one of its two owners, or both."""
    matching: Literal["auto", "open", "private"] = "auto"
    """How owners who stitch find out who holds which foreign id: open, by comparing hashes of ids at the server; private, by
    an exchange of blinded ids; auto: private between owners, open in one process."""
    matching_pad: Whole = 0
    """private: how many ids are asked for and held is told rounded up to a multiple of this; 0: exactly."""
    file: str = ""
    """file: path of the user's own assignment (one client name or number per line, or CSV node,client)."""


@dataclass(frozen=True)
class SplitSettings:
    """Which nodes train, validate and test."""

    scope: Literal["auto", "global", "client", "given"] = "global"
    """global: drawn once over the graph before the cut; client: inside each client; given: the data's own masks; auto: given
    masks, else inside each client."""
    train: PositiveShare = 0.6
    """Share of nodes that train."""
    val: PositiveShare = 0.2
    """Share of nodes that validate."""
    test: PositiveShare = 0.2
    """Share of nodes that test."""
    balanced: bool = False
    """Draw equally many training nodes of every class; of a small class all nodes train, and none is tested."""
    stratified: bool = False
    """Divide every class by these shares, so that a rare one trains, validates and tests."""
    number: Annotated[int, Field(ge=-1)] = -1
    """Which split is taken where given masks hold several, from 0; -1: that of the seed, the first one after the last."""


@dataclass(frozen=True)
class ModelSettings:
    """The network every method trains."""

    kind: Annotated[str, BACKBONES] = "gcn"
    """Backbone."""
    layers: Count = 2
    """Message-passing layers (gprgnn, mlp, gap: linear layers)."""
    hidden: Count = 64
    """Width of every hidden layer."""
    dropout: Annotated[DroppedShare, Search(0.0, 0.8, log=False)] = 0.5
    """Dropped share of hidden activations while training."""
    head: bool = False
    """A linear classifier after the last message-passing layer, which then also has width `hidden`."""
    heads: Count = 8
    """gat: attention heads; `hidden` is divided among them."""
    hops: Count = 10
    """gprgnn: propagation steps."""
    teleport: Share = 0.1
    """gprgnn: initial restart probability of its personalised-PageRank weights."""
    gap_hops: Count = 1
    """gap: how far sums over neighbours reach; each hop has noise of its own and costs as much as the first."""
    gap_sigma: NonNegative = 1.0
    """gap: noise on sums over neighbours, whose rows have length one; 0: none. See docs/privacy.md."""
    gap_level: Literal["edge", "node"] = "edge"
    """gap: what the noise hides: one edge, or (with training.dp_sigma) one node with whom it tells."""
    gap_max_degree: Count = 10
    """gap at node level: how many others a node tells; of more, so many are drawn."""
    narrow_first: bool = False
    """gcn, sage: whichever of product and propagation leaves fewer columns first: the same up to rounding, and sooner."""


Weighting = Literal["train-nodes", "nodes", "rounded", "uniform"]
"""What a client's model weighs in an average."""


@dataclass(frozen=True)
class TrainingSettings:
    """How the model is trained, alike for every method of a comparison."""

    rounds: Count = 100
    """Communication rounds."""
    local_epochs: Annotated[Count, Search(1, 5, log=False)] = 1
    """Passes over a client's training nodes in one round."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Local optimiser."""
    momentum: DroppedShare = 0.0
    """sgd: how much of the last step each step repeats."""
    loss: Literal["cross-entropy", "focal"] = "cross-entropy"
    """What classifying is trained by; focal: what is right already counts less. Numbers are trained by squared error."""
    focal_gamma: NonNegative = 2.0
    """focal: how much less."""
    class_weights: Literal["none", "balanced", "auto"] = "none"
    """balanced: a class weighs by 1 / its share of all owners' training nodes; auto: so where classes are uneven."""
    lr: Annotated[Positive, Search(0.001, 0.1)] = 0.01
    """Local learning rate, in the first round."""
    schedule: Literal["constant", "cosine", "step"] = "constant"
    """The learning rate over the rounds; cosine: down to nothing after the last one; step: see schedule_step."""
    schedule_step: Count = 30
    """step: rounds after which the learning rate is multiplied with schedule_factor, again and again."""
    schedule_factor: PositiveShare = 0.1
    """step: what it is multiplied with."""
    clip: NonNegative = 0.0
    """The longest gradient a client steps along, over all it trains at once; 0: any. DP-SGD has dp_clip."""
    weight_decay: Annotated[NonNegative, Search(1e-6, 1e-2)] = 0.0
    """L2 coefficient added to the gradient; adamw: share of the learning rate by which weights shrink in a step."""
    batch_size: Whole = 0
    """Training nodes in one mini-batch; 0 trains on the full batch."""
    fanouts: tuple[Count, ...] = ()
    """Neighbours sampled at each layer, seeds first; empty takes all of them. Needs batch_size > 0 and a sage model."""
    replace: bool = False
    """Sample neighbours with replacement."""
    keep_optimizer: bool = True
    """A client's optimiser moments survive from round to round; otherwise they start anew each round."""
    moments: Literal["own", "averaged", "server"] = "own"
    """Whose the optimiser's moments are: each client's own, averaged with the weights, or the server's, which then makes one
    step a round along the clients' mean gradient. See docs/stable-averaging.md."""
    server_optimizer: Literal["none", "momentum", "adam", "yogi"] = "none"
    """How the server goes on from the clients' mean (FedAvgM, FedAdam, FedYogi); none: by server_lr alone."""
    server_lr: Positive = 1.0
    """How far the server goes towards the clients' mean; adam, yogi: below 1, as a weight moves by about as much a round."""
    server_beta1: DroppedShare = 0.9
    """momentum, adam, yogi: how much of the server's last step the next one repeats."""
    server_beta2: DroppedShare = 0.99
    """adam, yogi: how slowly the server forgets how large updates were."""
    server_tau: Positive = 0.001
    """adam, yogi: updates smaller than this are not scaled up to the others."""
    weighting: Weighting = "train-nodes"
    """What a client's model weighs in an average, and so what is learnt of its size by whoever sees that: its training
    nodes, its nodes, the power of two next to its training nodes, or nothing."""
    participation: PositiveShare = 1.0
    """Share of clients asked in each round."""
    dp_sigma: NonNegative = 0.0
    """DP-SGD: noise on every step, as a multiple of dp_clip; 0 trains without. See docs/privacy.md."""
    dp_clip: Positive = 1.0
    """DP-SGD: the longest gradient a single training node can have."""
    aggregation: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"] = "mean"
    """How updates become one: all but the mean hold against a few wrong ones, for methods that only average."""
    byzantine: Whole = 1
    """trimmed-mean, krum and multi-krum: how many clients may be wrong."""
    stitch: Whole = 0
    """Steps after the last round in which owners smooth their predictions over the links they know. See docs/stitch.md."""
    stitch_share: Share = 0.95
    """stitch: how much of a prediction each step takes from neighbours."""
    stitch_temperature: Positive = 2.0
    """stitch: what class scores are divided by first; long training makes models too sure to be outvoted by neighbours."""
    stitch_sigma: NonNegative = 0.0
    """stitch: noise on every probability that is told to another owner."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Rounds without a better validation score after which training ends; 0: never."""


@dataclass(frozen=True)
class EvaluationSettings:
    """Which model is tested, on which graph, and which round is reported."""

    model: Literal["aggregated", "local"] = "aggregated"
    """aggregated: what the server would hand out next; local: each client's model as its local epochs left it."""
    graph: Literal["client", "global"] = "client"
    """The graph whose test accuracy is the protocol's headline: each client's own piece, or the uncut graph."""
    average: Literal["clients", "nodes"] = "clients"
    """Headline over clients: plain mean, or weighted by test nodes."""
    select: Literal["best-validation", "best-validation-per-client", "last"] = "best-validation"
    """Which round's test accuracy is reported."""
    every: Count = 1
    """Evaluate after every n-th round (the last round always)."""
    metric: Annotated[str, METRICS] = "auto"
    """What a test measures, and what the reported round is best in; auto: what fits the labels, see docs/metrics.md."""


@dataclass(frozen=True)
class Protocol:
    """A complete, named evaluation protocol."""

    name: str
    """Its name on the command line."""
    description: str = ""
    """One sentence on where it comes from."""
    task: Literal["node", "link"] = "node"
    """node: classify nodes; link: tell held-out edges from non-edges (the split then divides each client's edges)."""
    preprocess: PreprocessSettings = field(default_factory=PreprocessSettings)
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0, 1, 2)
    """One repetition per seed: partition, split, initial weights and all randomness follow from it."""
    tuned: tuple[str, ...] = ()
    """What `suture tune` found, a line for each method: `METHOD: KEY = VALUE, ... (by what)`; nothing else writes here."""
