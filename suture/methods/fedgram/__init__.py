"""FedGram (our own): `method.py` is the algorithm, the rest its private parts."""

from suture.methods.fedgram.method import FedGram as FedGram
