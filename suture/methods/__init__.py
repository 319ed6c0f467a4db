"""The registry: one method, one file (or a package, if it has private parts), one line here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from suture.errors import unknown
from suture.method import Method
from suture.methods.fed_gnn import FedGnnReference
from suture.methods.fed_gnnk import FedGnnk
from suture.methods.fed_gnnmlp import FedGnnMlp
from suture.methods.fed_mlp import FedMlp
from suture.methods.fedavg import FedAvg
from suture.methods.feddep.method import FedDep
from suture.methods.fedggr.method import FedGgr
from suture.methods.fedgls.method import FedGls
from suture.methods.fedgnn import FedGnn
from suture.methods.fedgraph import FedGraph
from suture.methods.fedgsl import FedGsl
from suture.methods.fedper import FedPer
from suture.methods.fedproto import FedProto
from suture.methods.fedprox import FedProx
from suture.methods.fedpub.method import FedPub
from suture.methods.fedsage import FedSage
from suture.methods.fedsage_plus.method import FedSagePlus
from suture.methods.gcfl import Gcfl
from suture.methods.gcfl_plus import GcflPlus
from suture.methods.globsage import GlobSage
from suture.methods.local import Local
from suture.methods.local_gnnk import LocalGnnk
from suture.methods.locsage import LocSage
from suture.methods.locsage_plus import LocSagePlus
from suture.methods.uncut import Global

METHODS: Mapping[str, type[Method[Any, Any]]] = {
    method.name: method
    for method in (
        *(Local, Global, FedAvg, FedProx, FedPer),
        *(FedSage, FedSagePlus, LocSage, LocSagePlus, GlobSage),
        *(FedPub, Gcfl, GcflPlus, FedGnn, FedProto),
        *(FedDep, FedGraph, FedGsl),
        *(FedGgr, FedGls, FedMlp, FedGnnMlp, LocalGnnk, FedGnnk, FedGnnReference),
    )
}

_COMMON = {field.name for field in dataclasses.fields(Method)}


def method_class(name: str) -> type[Method[Any, Any]]:
    """Look a method up by its name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def own_fields(method: type[Method[Any, Any]]) -> frozenset[str]:
    """Names of a method's own hyper-parameters, without the model and training settings all methods have."""
    return frozenset(field.name for field in dataclasses.fields(method)) - _COMMON
