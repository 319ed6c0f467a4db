"""What sums over all owners' nodes say of each node alone: the arithmetic of lines 1 to 4 of FedGram.

Everything is in float64, because a basis is as sensitive to rounding as its directions are alike.
Legend: K clients, N nodes, D features, R numbers a node is described by.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, segment_product
from suture.core.tree import Tree
from suture.graph.batch import GraphBatch
from suture.graph.features import Features
from suture.methods.census import CONSTANT
from suture.methods.census import MOSTLY_ZERO as MOSTLY_ZERO

SHIFT, SCALE, BASIS, GRAM, GENERATOR = "shift", "scale", "basis", "gram", "generator"
"""What everybody is told: m and s [1, D]; V [1, D, R]; its eigenvalues [1, R]; W [1, R, R]."""
SMALLEST = 1e-12
VANISHING = 1e-9
"""An eigenvalue below this part of the largest is rounding: its direction is anybody's guess, and is left out."""


def word_weights(filled_D: Tensor, size_D: Tensor, nodes: float) -> Tensor:
    """Line 1: log(n / (1 + nodes with the feature)), in units of the feature's mean size where it is not zero, [D]."""
    rarity = (nodes / (1 + filled_D * nodes)).clamp_min(1).log()
    return torch.where(size_D > 0, rarity * filled_D / size_D.clamp_min(SMALLEST), 0.0)


def deviation_weights(square_D: Tensor, size_D: Tensor) -> Tensor:
    """Line 1: one over the deviation, from its square in units of the mean size; zero for a feature of one value, [D]."""
    return torch.where(square_D > CONSTANT**2, 1 / (square_D.sqrt() * size_D).clamp_min(SMALLEST), 0.0)


def scaled_rows(x: Features, shift_KD: Tensor, scale_KD: Tensor) -> Features:
    """T = (x - m) s over its length, one row a node, float64; a row of zeros stays one."""
    owner, matrix = x.segments.client, x.matrix
    if isinstance(matrix, SparseMatrix) and not bool(shift_KD.any()):
        value = matrix.val.double() * scale_KD[owner[matrix.row], matrix.col.long()]
        square = value.new_zeros(matrix.rows).index_add_(0, matrix.row, value.square())
        return Features(replace(matrix, val=value / square.sqrt().clamp_min(SMALLEST)[matrix.row]), x.segments)
    rows = (x.dense().double() - shift_KD[owner]) * scale_KD[owner]
    return Features(F.normalize(rows, eps=SMALLEST), x.segments)


def products_with(rows: Features, basis_KDR: Tensor) -> Tensor:
    """Line 2: sums of t (t . Q) over each client's nodes, [K, D, R]."""
    z_NR, bounds = rows.times(basis_KDR), rows.segments.bounds
    return torch.stack([rows.mixed(k, z_NR[bounds[k] : bounds[k + 1]]).T for k in range(rows.segments.clients)])


def relations(graph: GraphBatch, z_NR: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Line 3: sums of z z^T over each client's nodes, of z_v z_v^T and z_v z_u^T over its edges u -> v; and these, [K]."""
    listed = graph.weighted_neighbours
    listed = replace(listed, val=listed.val.double())
    heard_N1 = listed.times(z_NR.new_ones(graph.num_nodes, 1))
    edges_K = torch.bincount(graph.segments.client[graph.edge_index[1]], minlength=len(graph.ids))
    own, ends, crossed = (outer(z_NR, other, graph.segments) for other in (z_NR, z_NR * heard_N1, listed.times(z_NR)))
    return own, ends, crossed, edges_K


def outer(left_NR: Tensor, right_NR: Tensor, segments: Segments) -> Tensor:
    """left^T right of each client's rows, [K, R, R]."""
    bounds = segments.bounds
    pieces = [slice(bounds[k], bounds[k + 1]) for k in range(segments.clients)]
    return torch.stack([left_NR[piece].T @ right_NR[piece] for piece in pieces])


def orthonormal(columns_DR: Tensor) -> Tensor:
    """An orthonormal basis of the columns."""
    basis: Tensor = torch.linalg.qr(columns_DR).Q
    return basis


def solved(basis_DR: Tensor, own_RR: Tensor, ends_RR: Tensor, crossed_RR: Tensor, ridge: float) -> Tree:
    """Line 4: eigenvectors and eigenvalues of the sums, and the least-squares generator, as everybody is told them."""
    eigenvalue, turn = torch.linalg.eigh((own_RR + own_RR.T) / 2)
    eigenvalue, turn = eigenvalue.flip(0).clamp_min(0), turn.flip(1)
    vanishing = eigenvalue <= VANISHING * eigenvalue[0]
    turn = turn.masked_fill(vanishing, 0)
    vectors = basis_DR @ turn
    # Of the two directions of a vector the one whose larger entries are positive, whatever the solver chose.
    sign = torch.where((vectors**3).sum(0) < 0, -1.0, 1.0)
    vectors, turn = vectors * sign, turn * sign
    ends, crossed = (turn.T @ each @ turn for each in (ends_RR, crossed_RR))
    generator = torch.linalg.solve(ends + ridge * torch.eye(ends.shape[0], dtype=ends.dtype, device=ends.device), crossed)
    told = {BASIS: vectors, GRAM: eigenvalue.masked_fill(vanishing, 0), GENERATOR: generator}
    return {name: value.float().unsqueeze(0) for name, value in told.items()}


def described(rows: Features, told: Tree, strength: float) -> Tensor:
    """Lines 5 and 6: what a node hears of those that are like it, and what its neighbours are expected to be, [N, 2R]."""
    z_NR, segments = rows.times(told[BASIS].double()).float(), rows.segments
    alike = F.normalize(z_NR * told[GRAM][segments.client], eps=SMALLEST)
    expected = F.normalize(segment_product(z_NR, told[GENERATOR], segments), eps=SMALLEST)
    return strength * torch.cat([alike, expected], 1)


def lengthened(rows: Features, strength: float) -> Features:
    """The rows t of line 1 as a network reads them: of another length, float32."""
    matrix = rows.matrix
    if isinstance(matrix, SparseMatrix):
        return Features(replace(matrix, val=(strength * matrix.val).float()), rows.segments)
    return Features((strength * matrix).float(), rows.segments)
