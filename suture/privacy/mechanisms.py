"""DP-SGD with a client axis. Abadi et al., Deep learning with differential privacy, CCS 2016.

    in every step of client k, with n_k training examples and `batch` of them expected in a step
      1  draw each example with probability q_k = min(1, batch / n_k), independently of the others (Poisson)
      2  for each drawn example i: g_i <- gradient of its loss alone;  g_i <- g_i * min(1, C / ||g_i||)
      3  the optimiser gets (sum_i g_i + N(0, sigma^2 C^2 I)) / (q_k n_k)

Any method that trains through `train_locally` (suture/training/local.py) is trained this way once `training.dp_sigma` is
above zero; the method itself has nothing to do. Line 1 is what accountants assume, and it is not the same as shuffling, so a
step may hold more or fewer examples than `batch`, or none: it then adds its noise all the same. Every client draws from its
own stream.

An example is a training node with its loss. The noise hides whether the loss of one node was in the sum. It does not hide
the node's features and edges as far as other examples see them through message passing, and it covers nothing that leaves a
client beside its weights. `privacy.accountant` says how much it hides.

In a simulation noise and draws follow from the seed, as everything does. At a real owner the streams carry a `Secret`; lines
1 and 3 then draw from it, and sums are made of whole numbers, where no rounding depends on other examples:

      2' q_i <- round(g_i * min(1, C / ||g_i||) / h) for a grid h; an example whose gradient is not finite, or longer
         than 1e20, counts as none
      3' the optimiser gets h (sum_i q_i + Z) / (q_k n_k), Z the discrete Gaussian (`privacy.gaussian`) of deviation s

Rounding lengthens a clipped gradient of P numbers by h sqrt(P) / 2 at most, and h is chosen so that s h is sigma times the
length it may then have: the account of sigma holds as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix
from suture.core.message import Kind
from suture.core.streams import Secret, Streams, unit
from suture.core.tree import Tree, column
from suture.errors import ConfigError
from suture.privacy.gaussian import deviation_of, discrete_gaussian

LEAST_SIGMA, MOST_DIGITS = 2.0**-10, 4
"""So that 2^19 examples are whole numbers below 2^53 together, which float64 adds up exactly."""
EXTREME = 1e20
"""Beyond it float32 has no room for what is computed here: no clip may be, and no gradient counts that is."""


@dataclass(frozen=True)
class NoisyGradients:
    """A method's statement that it trains by DP-SGD; see `Method.mechanisms`."""

    step: str
    """The name of the step that does so."""
    epochs: int
    """Epochs in each call of it."""
    batch_size: int
    """Examples expected in a step of the optimiser; 0: all."""
    sigma: float


@dataclass(frozen=True)
class SampledNeighbours:
    """A method's statement that what leaves a client saw sampled neighbours only (NFDP); see `Method.mechanisms`."""

    step: str
    """The name of the step that trains on them."""
    epochs: int
    """Epochs in each call of it."""
    fanouts: tuple[int, ...]
    """Neighbours sampled in each layer; none: all of them were seen, and nothing is promised."""
    replace: bool
    rate: float = 1.0
    """r of a Bernoulli sampler that what was learnt goes through afterwards."""
    uncovered: tuple[str, ...] = ()
    """What else leaves the client and saw its edges."""


@dataclass(frozen=True)
class NoisySums:
    """A method's statement that it hears edges only by sums over neighbours with noise on them; see `suture.nn.aggregates`.

    They are computed once for a graph, so that they cost the same however often they are used.
    """

    hops: int
    """Sums after one another, each with noise of its own."""
    sigma: float
    """The noise on them; their rows have length one."""
    most: int = 0
    """Node level: the most sums that a node stands in; 0: edge level."""

    @property
    def sensitivity(self) -> float:
        """How much an edge in both directions, or a node, changes one hop's sums, in L2."""
        return math.sqrt(self.most or 2)

    @property
    def multiplier(self) -> float:
        """Noise as a multiple of the sensitivity, as accountants want it."""
        return self.sigma / self.sensitivity

    @property
    def edge_multiplier(self) -> float:
        """The same for one edge in both directions.

        At node level it may take another's place in the lists of both its ends: two sums gain a row of length one, and two
        lose one, or the same one loses both, which is 1 + 1 + 4 at most.
        """
        return self.sigma / math.sqrt(6 if self.most else 2)


@dataclass(frozen=True)
class DrawnEdges:
    """A method's statement that all it sends is computed from edges that every owner drew once; see `graph.drawn`."""

    share: float
    """Probability with which an edge was drawn."""


@dataclass(frozen=True)
class NoisyMeans:
    """A method's statement that means of groups of nodes leave with Gaussian noise on them."""

    step: str
    """The name of the step that sends them."""
    sigma: float
    """The noise, as a multiple of what replacing one node can change in a mean, its group given."""


@dataclass(frozen=True)
class Level:
    """One thing that noise hides, and how far it moves all that is told, over the noise's deviation."""

    name: str
    hides: str
    mu: float


@dataclass(frozen=True)
class NoisyRows:
    """A method's statement that probabilities of single nodes, smoothed over links, leave with noise on every number."""

    step: str
    """The name of the step that sends them: one row of a node in each call."""
    sigma: float
    times: int = 1
    """How often a run asks for it."""
    share: float = 1.0
    """a: what neighbours' rows weigh in a step."""
    longest: float = 1.0
    """To which rows that were heard are shortened."""

    uncovered: ClassVar[tuple[Kind, ...]] = (Kind.ADDRESSES,)

    def levels(self, times: Mapping[str, int], degree: int) -> tuple[Level, ...]:
        """What is hidden, of steps that were asked so often, where no node has more own neighbours."""
        told = times.get(self.step, 0)
        return (
            Level("Gaussian rows", "the rows that were told of one node, not what they follow from", self.row_mu(told)),
            Level("Gaussian rows, link", "one known link, in what was told of all nodes", self.link_mu(told, degree)),
        )

    def row_mu(self, told: int) -> float:
        """How far apart so many rows told of one node can be: sqrt(2) in the first step, 2 in later ones; over sigma."""
        return math.sqrt(max(0, 2 + 4 * (told - 1)) if told else 0) / self.sigma

    def link_mu(self, told: int, degree: int) -> float:
        """How far one known link moves all that was told in so many steps, by the most own neighbours of a node; over sigma.

        Models do not hear known links, so the first step does not move. In each step a node's mean of n >= 2 rows in a ball
        of radius `longest` gains or loses one: `longest` at most. What moved before is averaged over own neighbours, by a
        matrix whose rows sum to one at most, and its columns to 1 / (1 + degree) + degree / 2. The link's own end moves
        first, its neighbours a step later, and so on; of each a row is told that is no longer than one, so moves by 2.
        """
        columns, moved, squares, reached = max(1.0, 1 / (1 + degree) + degree / 2), 0.0, 0.0, 0
        for _ in range(told):
            squares += min(moved**2, 4.0 * reached)
            moved, reached = self.share * (math.sqrt(columns) * moved + self.longest), 1 + degree * reached
        return math.sqrt(squares) / self.sigma


@dataclass(frozen=True)
class NoisyLinks:
    """A method's statement that sums of rows over links leave with Gaussian noise, given as a multiple of the longest.

    With d_u one more than the number of u's neighbours, foreign ones too, and rows no longer than 1: u stands in the sums
    of its k foreign neighbours with x_u / sqrt(d_u), and, in the second step, in those of its m own neighbours v that are
    told, with x_u / sqrt(d_u d_v); what is told of u itself is shortened to 1. Numbers of links, and addresses, are told
    without noise, and are taken as given. As d >= 2 for whoever has a neighbour and k + m < d,

        one link is in one sum of the first step, 1 / sqrt(2) at most, or in two of the second, 1 / 2 each at most
        one node changes the first step's sums by sqrt(k / d), the second's by sqrt(m / (2 d)), and its own by 1

    Shortening is a projection, which moves no two rows apart.
    """

    steps: tuple[str, ...]
    """The names of the one or two steps, each of which is carried out once."""
    sigma: float

    uncovered: ClassVar[tuple[Kind, ...]] = (Kind.ADDRESSES, Kind.COUNTS)

    def levels(self, times: Mapping[str, int], degree: int) -> tuple[Level, ...]:
        """What is hidden, of steps that were asked so often."""
        often = math.sqrt(max(times.get(step, 0) for step in self.steps)) / self.sigma
        return (
            Level("Gaussian sums, link", "one link in sums of features", self.link * often),
            Level("Gaussian sums, node", "one node's row, and its links, in sums of features", self.node * often),
        )

    @property
    def link(self) -> float:
        """How far one link moves all of it, in L2."""
        return math.sqrt(0.5)

    @property
    def node(self) -> float:
        """How far one node moves all of it."""
        return math.sqrt(len(self.steps))


Mechanism = NoisyGradients | SampledNeighbours | NoisySums | DrawnEdges | NoisyMeans | NoisyRows | NoisyLinks


def poisson_sample(segments: Segments, rate_K: Tensor, rng: Streams) -> Tensor:
    """Line 1: which rows are drawn, each with its client's probability, bool [N]."""
    rate = rate_K.to(torch.float64)[segments.client]
    if rng.secret is None:
        return rng.uniform(segments.ptr).squeeze(1) < rate
    return unit(rng.secret.words(rate.numel())).to(rate.device) < rate


def clip_factors(grads: Tree, clip: float) -> Tensor:
    """min(1, C / ||g_k||) over all tensors of row k together, [K]."""
    norms = [torch.linalg.vector_norm(value.reshape(value.shape[0], -1), dim=1) for value in grads.values()]
    total = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factor: Tensor = (clip / total.clamp_min(1e-12)).clamp_max(1.0)
    return factor


def noise_like(tree: Tree, deviation: float, rng: Streams) -> Tree:
    """N(0, deviation^2) in every entry; row k from client k's stream."""
    out: Tree = {}
    for name, value in tree.items():
        clients = value.shape[0]
        one_row_each = torch.arange(clients + 1, device=value.device)
        normal = rng.fork("noise", name).normal(one_row_each, value[0].numel())
        out[name] = normal.view_as(value).to(value.dtype).mul_(deviation)
    return out


def noise_rows(ptr: Tensor, width: int, deviation: float, rng: Streams) -> Tensor:
    """N(0, deviation^2), float32 [N, width]; the rows of client k, as `ptr` [K + 1] divides them, from its stream."""
    return rng.fork("noise").normal(ptr, width).mul_(deviation)


def secret_sums(listed: SparseMatrix, rows_NW: Tensor, deviation: float, secret: Secret) -> Tensor:
    """Sums of rows, of length one at most, with noise on them that nobody else can draw, [N, W].

    As in lines 2' and 3': rows are rounded to a grid, summed as whole numbers, and the noise is the discrete Gaussian. What
    rounding adds to a row's length is paid for by as much more noise. A row that is not finite counts as none.
    """
    grid, digits = grid_for(deviation, 1.0, rows_NW.shape[1], "model.gap_sigma")
    whole = (rows_NW.double() / grid).round_()
    whole = torch.where(torch.isfinite(whole).all(1, keepdim=True), whole, 0.0)
    total = replace(listed, val=listed.val.double()).times(whole)
    return _with_noise(total, digits, secret).mul_(grid).to(rows_NW.dtype)


def secret_means(means: Tensor, change: float, sigma: float, secret: Secret, setting: str) -> Tensor:
    """Means, one row of which may change by `change` in L2, with noise of sigma times that which nobody else can draw.

    Whole numbers again. Rounding moves a row before and after the change, by h sqrt(W) / 2 each: as it moves one of four
    times as many numbers once.
    """
    grid, digits = grid_for(sigma, change, 4 * means.shape[-1], setting)
    return _with_noise((means.double() / grid).round_(), digits, secret).mul_(grid).to(means.dtype)


def _with_noise(whole: Tensor, digits: int, secret: Secret) -> Tensor:
    """Whole numbers with discrete noise on them, as float64."""
    noise = discrete_gaussian(secret, whole.numel(), digits).to(whole.device)
    return (whole.to(torch.int64) + noise.view_as(whole)).double()


def private_gradient(
    examples: Iterable[tuple[Tree, Tensor]], like: Tree, clip: float, sigma: float, expected_K: Tensor, rng: Streams
) -> Tree:
    """Lines 2 and 3: the noisy mean of clipped gradients, [K, ...].

    `examples` gives one example of each client at a time: its gradient [K, ...], and which clients have one, bool [K].
    Only one gradient a client is held at a time, however many examples there are. `expected_K` is q_k n_k.
    """
    if rng.secret is not None:
        return _in_whole_numbers(examples, like, clip, sigma, expected_K, rng.secret)
    total = {name: torch.zeros_like(value, memory_format=torch.contiguous_format) for name, value in like.items()}
    for grads, present_K in examples:
        factor_K = clip_factors(grads, clip) * present_K
        for name, value in grads.items():
            total[name].addcmul_(value, column(factor_K, value))
    share_K = 1.0 / expected_K.clamp_min(1)
    noise = noise_like(total, sigma * clip, rng)
    return {name: (value + noise[name]).mul_(column(share_K, value)) for name, value in total.items()}


def grid_for(sigma: float, clip: float, numbers: int, setting: str = "training.dp_sigma") -> tuple[float, int]:
    """(h, digits of the noise) for gradients of so many numbers, as fine as rounding needs to cost next to nothing.

    h solves s h = sigma (C (1 + 2^-20) + h sqrt(P) / 2); the inner bracket is what clipping in float32 may be wrong by.
    """
    if not 1 / EXTREME < clip < EXTREME:
        raise ConfigError(f"training.dp_clip={clip:g} is beyond what can be computed; choose one from 1e-19 to 1e19")
    lengthened = sigma * numbers**0.5 / 2
    for digits in range(2, MOST_DIGITS + 1):
        deviation = deviation_of(digits)
        if lengthened <= deviation / 1024 and sigma >= LEAST_SIGMA:
            return sigma * clip * (1 + 2.0**-20) / (deviation - lengthened), digits
    raise ConfigError(f"{setting}={sigma:g} is beyond what can be drawn securely; choose one from 1e-3 to 1e3")


def _in_whole_numbers(
    examples: Iterable[tuple[Tree, Tensor]], like: Tree, clip: float, sigma: float, expected_K: Tensor, secret: Secret
) -> Tree:
    """Lines 2' and 3'."""
    grid, digits = grid_for(sigma, clip, sum(value[0].numel() for value in like.values()))
    # Whole numbers in float64: sums below 2^53 are exact, and much faster than those of int64.
    total = {name: torch.zeros(value.shape, dtype=torch.float64, device=value.device) for name, value in like.items()}
    for grads, present_K in examples:
        rows = [value.reshape(value.shape[0], -1) for value in grads.values()]
        norms = torch.stack([torch.linalg.vector_norm(row, dim=1, dtype=torch.float64) for row in rows])
        norm_K = torch.linalg.vector_norm(norms, dim=0)
        counts_K = present_K & (norm_K < EXTREME)
        factor_K = (clip / norm_K.clamp_min(1e-30)).clamp_max(1.0) / grid
        for name, value in grads.items():
            whole = (value * column(factor_K, value)).round_()
            if not bool(counts_K.all()):
                whole = torch.where(column(counts_K, value) > 0, whole, 0.0)
            total[name] += whole
    share_K = grid / expected_K.clamp_min(1).double()
    out: Tree = {}
    for name, value in total.items():
        noisy = _with_noise(value, digits, secret.fork("noise", name))
        out[name] = (noisy * column(share_K, noisy)).to(like[name].dtype)
    return out
