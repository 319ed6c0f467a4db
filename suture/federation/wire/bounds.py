"""How large, how many and how far: what parties of a federation take from each other, in one place, and why.

A bound is generous: no honest party comes near it. What is beyond cannot be an honest party's, and is refused before
anything is made of it.
"""

from __future__ import annotations

from suture.core.headers import HeaderBounds

# Frames.

FRAME_HEADER = HeaderBounds(size=4 << 20, elements=1 << 19, depth=24)
"""The largest are terms with the statistics of each feature: 100,000 features have 4 MB. Read in less than a second."""
MOST_PARTS = 64
"""Requests in one call. Ours have up to four."""
MOST_REQUEST_BYTES = 1 << 30
"""What an owner reads of a coordinator; what a coordinator reads of an owner is `max_reply_bytes` of its order."""
MOST_NUMBER = 1 << 48
"""Steps, rounds and the like in a header."""

# Numbers in replies.

MOST_MAGNITUDE = 1e18
"""Of any float. Graphs hold nothing larger either. The sum over 10,000 owners that weigh 2^31 each is 2e31, and that of
their squares fits into double precision, in which similarities and distances are computed: neither overflows."""
MOST_TIMES_THE_USUAL = 1e6
"""Of a model, a gradient or an embedding: so many times as large as usual (the median of all owners' largest entries, and at
least 1) is absurd, whatever the scale. One such model in an average makes everybody's next step NaN."""
FEWEST_TO_COMPARE = 3
"""Of two owners nobody can say which is the absurd one."""
MOST_NODES = float(1 << 31)
"""Of one owner: no count and no weight is larger, or negative. Indices of a graph have 31 bits."""
SHARE_TOLERANCE = 1e-6
"""By which a share may leave 0 to 1 in rounding."""

# What owners describe, and terms.

MOST_FEATURES = 1 << 20
DEEP = frozenset({"layers", "hops", "heads", "depth", "learner_layers", "personal_layers"})
MOST_DEEP = 64
"""Settings by which a network is one after the other: each costs a pass."""
MANY = frozenset({"most", "fanout", "neighbours", "k", "clusters", "proxy_blocks", "proxy_block_size", "exchanged"})
MOST_MANY = 1024
"""Settings that say how many there are of something for each node: they multiply what a step takes."""
MOST_SETTING = 1 << 20
"""Any other whole number of a model's or a method's settings: widths, batches, rounds. How many parameters follow of them
is the owner's own question, see its policy."""
MOST_SCALAR = 1 << 26
"""A whole number in a message to an owner, such as how many nodes the largest owner has: memory is taken by it."""
