"""FedSage+ (Zhang et al., NeurIPS 2021): `method.py` is the algorithm, the rest its private parts."""

from suture.methods.fedsage_plus.method import FedSagePlus as FedSagePlus
