"""The registry: one method, one file (or a package, if it has private parts), one line here."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from suture.config.layers import SECTIONS
from suture.core.trusted import let_in
from suture.errors import ConfigError
from suture.method import Method
from suture.methods.adafgl import AdaFgl
from suture.methods.census import Census
from suture.methods.ditto import Ditto
from suture.methods.fed_gnn import FedGnnReference
from suture.methods.fed_gnnk import FedGnnk
from suture.methods.fed_gnnmlp import FedGnnMlp
from suture.methods.fed_mlp import FedMlp
from suture.methods.fedala import FedAla
from suture.methods.fedavg import FedAvg
from suture.methods.feddep.method import FedDep
from suture.methods.fedgcn import FedGcn
from suture.methods.fedggr.method import FedGgr
from suture.methods.fedgls.method import FedGls
from suture.methods.fedgnn import FedGnn
from suture.methods.fedgram.method import FedGram
from suture.methods.fedgraph import FedGraph
from suture.methods.fedgsl import FedGsl
from suture.methods.fedgta import FedGta
from suture.methods.fedper import FedPer
from suture.methods.fedproto import FedProto
from suture.methods.fedprox import FedProx
from suture.methods.fedpub.method import FedPub
from suture.methods.fedsage import FedSage
from suture.methods.fedsage_plus.method import FedSagePlus
from suture.methods.fedtad.method import FedTad
from suture.methods.fggp import Fggp
from suture.methods.fgssl import Fgssl
from suture.methods.gcfl import Gcfl
from suture.methods.gcfl_plus import GcflPlus
from suture.methods.globsage import GlobSage
from suture.methods.local import Local
from suture.methods.local_gnnk import LocalGnnk
from suture.methods.locsage import LocSage
from suture.methods.locsage_plus import LocSagePlus
from suture.methods.matching import Matching
from suture.methods.moon import Moon
from suture.methods.scaffold import Scaffold
from suture.methods.suture.method import Suture
from suture.methods.uncut import Global
from suture.plugins import Door, check_class

METHODS: Mapping[str, type[Method[Any, Any]]] = {
    method.name: method
    for method in (
        Suture,
        *(Local, Global, FedAvg, FedProx, FedPer, Scaffold, Ditto, Moon, FedAla),
        *(FedSage, FedSagePlus, LocSage, LocSagePlus, GlobSage),
        *(FedPub, Gcfl, GcflPlus, FedGnn, FedProto, FedGta, FedTad, Fgssl, AdaFgl, Fggp),
        *(FedDep, FedGraph, FedGsl, FedGcn, FedGram),
        *(FedGgr, FedGls, FedMlp, FedGnnMlp, LocalGnnk, FedGnnk, FedGnnReference),
    )
}

_COMMON = {field.name for field in dataclasses.fields(Method)}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = frozenset({*SECTIONS, "methods", "seeds", "protocol", "dataset", "run", Census.name, Matching.name})
"""What stands where a method's name could stand, in files and in `--set`."""

AnyMethod = type[Method[Any, Any]]
Methods = Door[AnyMethod]


def check_method(thing: object, how: str) -> AnyMethod:
    """A class that can be run, or one sentence."""
    kind: AnyMethod = check_class(thing, how, Method, "method")
    name = vars(kind).get("name")
    if not isinstance(name, str):
        raise ConfigError(
            f"{how} has no name of its own; write in it, for example, name: ClassVar[str] = {kind.__name__.lower()!r}"
        )
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{how} is called {name!r}; a method's name is lower-case letters, digits and _, such as 'fedavg'")
    if name in RESERVED:
        raise ConfigError(
            f"{how} is called {name!r}, which is a reserved name: --set {name}.KEY means something else; rename it"
        )
    if "__dataclass_fields__" not in vars(kind):
        raise ConfigError(
            f"{how} must be decorated with @dataclass(frozen=True), so that its fields are its hyper-parameters"
        )
    return kind


DOOR: Methods = Door("method", "suture.methods", METHODS, check_method, lambda kind: kind.name)


def door_with(spellings: Iterable[str]) -> Methods:
    """The door behind which these methods, which a party named for itself, have their names as well."""
    door, spellings = DOOR, tuple(spellings)
    let_in(spellings)
    for spelling in spellings:
        door = door.letting_in(spelling)
    return door


def own_fields(method: AnyMethod) -> frozenset[str]:
    """Names of a method's own hyper-parameters, without the model and training settings all methods have."""
    return frozenset(field.name for field in dataclasses.fields(method)) - _COMMON


@dataclass(frozen=True)
class FieldsByMethod(Mapping[str, frozenset[str]]):
    """Names of the hyper-parameters of every method behind a door, looked up when they are asked for."""

    door: Methods

    def __getitem__(self, name: str) -> frozenset[str]:
        if name not in self.door.names():
            raise KeyError(name)
        try:
            return own_fields(self.door.by_name(name))
        except ConfigError:  # a broken package's method; whoever asks for it is told
            return frozenset()

    def __iter__(self) -> Iterator[str]:
        return iter(self.door.names())

    def __len__(self) -> int:
        return len(self.door.names())
