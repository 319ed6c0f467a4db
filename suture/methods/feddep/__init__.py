"""FedDEP (Zhang et al., SDM 2024): `method.py` is the algorithm, the rest its private parts."""

from suture.methods.feddep.method import FedDep as FedDep
