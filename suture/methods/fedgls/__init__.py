"""FedGLS (Fu et al., TMLR 2024): `method.py` is the algorithm, the rest its private parts."""

from suture.methods.fedgls.method import FedGls as FedGls
