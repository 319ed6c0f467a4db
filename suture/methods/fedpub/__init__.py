"""FED-PUB (Baek et al., ICML 2023): `method.py` is the algorithm, the rest its private parts."""

from suture.methods.fedpub.method import FedPub as FedPub
