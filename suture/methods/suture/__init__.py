"""Suture (our own): `method.py` is the algorithm, `mixture.py` how its experts are heard together."""

from suture.methods.suture.method import Suture as Suture
