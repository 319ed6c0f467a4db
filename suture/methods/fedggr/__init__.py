"""FedGGR (Liu et al., 2023): `method.py` is the algorithm, the rest its private parts."""

from suture.methods.fedggr.method import FedGgr as FedGgr
