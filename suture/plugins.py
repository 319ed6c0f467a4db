"""Doors: how methods, backbones, metrics, partitions, datasets and protocols of others come in, without a fork.

At every door a thing is named in one of three ways:

    fedavg                    a name: what comes with Suture, and what installed packages offer as entry points
    path/to/file.py:FedAMP    a file, and a name in it
    package.module:FedAMP     a module that can be imported, and a name in it

In Python the thing itself will do. Entry points are those of the groups `suture.methods`, `suture.backbones`,
`suture.metrics`, `suture.partitions`, `suture.datasets` and `suture.protocols`. What they lead to is imported when it is
asked for: a broken package breaks nothing but itself.

Files and modules are run only if this user let them in; see `suture.core.trusted`.

A `Door` is a frozen value; letting something in (`door.letting_in(thing)`) gives another door and leaves this one as it was.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from suture.core.storage import real_path
from suture.core.trusted import Code, absolute, code_at, is_spelled, parts, refuse_foreign
from suture.errors import ConfigError, IntegrityError, unknown

T = TypeVar("T")

_LOADED = "suture_plugins"
"""Before the names of modules that were loaded from a path."""


@dataclass(frozen=True)
class Source:
    """Where a foreign thing is to be found again."""

    kind: str
    """Which door it came through: method, backbone, ..."""
    name: str
    """What it is called inside of a run."""
    spelling: str
    """A file's absolute path or a module, and a name in it; empty if it was given in memory and cannot be found again."""
    sha256: str
    """Of the file it is written in; empty if it has none."""

    def check_unchanged(self) -> None:
        """Refuse to go on with other code than the run was begun with."""
        if self.spelling and code_at(self.spelling).sha256 != self.sha256:
            raise IntegrityError(
                f"{self.spelling} has changed since this run was begun (its SHA-256 was {self.sha256[:16]}...): restore it, "
                "or start the run anew"
            )


@dataclass(frozen=True)
class Choice:
    """Marks a text of the settings as the name of something behind a door: `Annotated[str, Choice(...)]`.

    Settings are read before anything heavy is imported, so the names that come with Suture are repeated here.
    """

    what: str
    group: str
    shipped: tuple[str, ...]

    def names(self) -> tuple[str, ...]:
        """What comes with Suture, and what installed packages offer."""
        return (*self.shipped, *(name for name in installed(self.group) if name not in self.shipped))

    def checked(self, value: str) -> str:
        """The name, or the spelling with an absolute path."""
        if value not in self.names() and not is_spelled(value):
            raise ValueError(f"no {self.what} is called {value!r}")
        return value if value in self.names() else absolute(value, self.what)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, list[str]]:
        return {"enum": list(self.names())}


@dataclass(frozen=True)
class Door(Generic[T]):
    """One kind of thing, and everything of that kind that can be asked for."""

    what: str
    """What it is called in sentences."""
    group: str
    """The entry points' group."""
    shipped: Mapping[str, T]
    check: Callable[[object, str], T]
    """(a thing, how it was asked for) to the thing, or a `ConfigError` that says why it is none of this kind."""
    name_of: Callable[[T], str] | None = None
    """What a thing calls itself, if it says so itself; otherwise it is called as it is spelled."""
    given: Mapping[str, T] = field(default_factory=dict)
    """What was let in, by name."""

    def names(self) -> tuple[str, ...]:
        """All that can be asked for by name; nothing is imported for it."""
        return tuple(dict.fromkeys((*self.shipped, *installed(self.group), *self.given)))

    def find(self, asked: str | T) -> T:
        """By name or spelling; or a thing itself, checked."""
        return self._found(asked, anew=True)

    def recall(self, asked: str) -> T:
        """The same in the middle of a run, during which a file that is being edited must not become another."""
        return self._found(asked, anew=False)

    def _found(self, asked: str | T, anew: bool) -> T:
        if not isinstance(asked, str):
            return self.check(asked, in_memory(asked))
        if is_spelled(asked) and asked not in self.names():
            return self.check(load(asked, self.what, anew), asked)
        return self.by_name(asked)

    def by_name(self, name: str) -> T:
        """By name alone: nothing but installed code, and what was let in."""
        if name in self.given:
            return self.given[name]
        if name in self.shipped:
            return self.shipped[name]
        if name not in installed(self.group):
            raise unknown(self.what, name, self.names())
        return self._of_package(name)

    def _of_package(self, name: str) -> T:
        offers = installed(self.group)[name]
        packages = " and ".join(sorted({_package(offer) for offer in offers}))
        if len(offers) > 1:
            raise ConfigError(f"the packages {packages} both offer a {self.what} {name!r}; remove one of them")
        place = f"the {self.what} {name!r} of the package {packages}"
        with _said_of(place, f"repair or remove {packages}"):
            thing: object = offers[0].load()
        found = self.check(thing, place)
        if self.name_of is not None and self.name_of(found) != name:
            raise ConfigError(f"{place} calls itself {self.name_of(found)!r}; its entry point must have the same name")
        return found

    def letting_in(self, asked: str | T) -> Door[T]:
        """A door behind which this thing also has its name; a name that something else has is refused."""
        thing = self.find(asked)
        name = self.called(asked, thing)
        if thing is self.shipped.get(name) or thing is self.given.get(name):
            return self
        how = asked if isinstance(asked, str) else in_memory(asked)
        if name in self.shipped or name in self.given:
            whose = "comes with Suture" if name in self.shipped else "was given as well"
            raise ConfigError(f"{how} calls itself {name!r}, but a {self.what} of that name {whose}; give it another name")
        if name in installed(self.group) and self._of_package(name) is not thing:
            package = _package(installed(self.group)[name][0])
            raise ConfigError(f"{how} calls itself {name!r}, as does a {self.what} of {package}; give it another name")
        return replace(self, given={**self.given, name: thing})

    def called(self, asked: str | T, thing: T) -> str:
        """The name of a thing that was asked for."""
        if self.name_of is not None:
            return self.name_of(thing)
        return asked if isinstance(asked, str) else in_memory(asked)

    def survey(self) -> tuple[dict[str, T], list[str]]:
        """Everything behind this door by name, and a sentence for each thing that an installed package offers in vain."""
        found, complaints = {**self.shipped}, []
        for name, offers in installed(self.group).items():
            if name in self.shipped:
                complaints.append(
                    f"the package {_package(offers[0])} offers a second {self.what} {name!r}, which is ignored"
                )
                continue
            try:
                found[name] = self._of_package(name)
            except ConfigError as error:
                complaints.append(str(error))
        return {**found, **self.given}, complaints

    def source(self, name: str, thing: T) -> Source | None:
        """Where to find a thing of this name again; None for what comes with Suture."""
        if any(thing is ours for ours in self.shipped.values()):
            return None
        if is_spelled(name):
            spelling = absolute(name, self.what)
        else:
            spelling = installed(self.group)[name][0].value if name in installed(self.group) else spelling_of(thing)
        return Source(self.what, name, spelling, code_at(spelling).sha256 if spelling else "")


@cache
def installed(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by name, as the packages' metadata list them; nothing is imported."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for offer in entry_points(group=group):
        found[offer.name] = (*found.get(offer.name, ()), offer)
    return dict(sorted(found.items()))


def refuse_spelled(values: Mapping[str, object], place: str = "") -> None:
    """Between machines only names travel: a file or a module is not looked for because somebody else spelled it."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            refuse_spelled(value, f"{place}{key}.")
        elif key in ("kind", "metric", "method", "dataset") and isinstance(value, str) and is_spelled(value):
            raise ConfigError(
                f"{place}{key} {value} is a file or a module, but parties run only what is installed at them: install it "
                "there as a package with an entry point, and give its name"
            )


def load(spelling: str, what: str = "plug-in", anew: bool = True) -> object:
    """What a spelling leads to; one sentence if it leads nowhere, or to what this user has not let in.

    Files are read anew, or taken as last loaded.
    """
    home, name = parts(spelling, what)
    place = f"the {what} {spelling}"
    if home.endswith(".py"):
        with _said_of(place, "repair that file"):
            module = _module_at(real_path(Path(home)), name, place, anew)
    else:
        refuse_foreign([code_at(spelling)], place, spelling)
        with _said_of(place, "check the module's name and its imports, and that it is installed or on PYTHONPATH"):
            module = importlib.import_module(home)
    thing: object = module
    for part in name.split("."):
        if not hasattr(thing, part):
            own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
            raise unknown(f"name in {home}", name, own)
        thing = getattr(thing, part)
    return thing


def spelling_of(thing: object) -> str:
    """The spelling under which another process finds a class or function; empty if there is none."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    name = getattr(thing, "__qualname__", "<locals>")
    if module is None or "<" in name:
        return ""
    file = getattr(module, "__file__", None)
    by_path = module.__name__ == "__main__" or module.__name__.startswith(_LOADED)
    if by_path and (file is None or not file.endswith(".py")):
        return ""
    return f"{Path(str(file)).resolve()}:{name}" if by_path else f"{module.__name__}:{name}"


def in_memory(thing: object) -> str:
    """What to call a thing that was given as an object."""
    return getattr(thing, "__qualname__", None) or repr(thing)


def check_class(thing: object, how: str, base: type, what: str) -> Any:
    """A complete class of this family, or one sentence."""
    if not isinstance(thing, type) or not issubclass(thing, base):
        raise ConfigError(f"{how} is no {what}: it must be a class that inherits from {base.__module__}.{base.__name__}")
    missing = sorted(getattr(thing, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"{how} is not complete: write {', '.join(missing)}, or inherit from a class that has them")
    return thing


def check_function(thing: object, how: str, what: str, arguments: int) -> Callable[..., Any]:
    """A function that can be called with so many arguments, or one sentence."""
    if isinstance(thing, type) or not callable(thing):
        raise ConfigError(f"{how} is no {what}: it must be a function")
    try:
        inspect.signature(thing).bind(*range(arguments))
    except TypeError as error:
        raise ConfigError(f"{how} is no {what}: it must take {arguments} arguments ({error})") from None
    return thing


def _module_at(path: Path, name: str, place: str, anew: bool) -> ModuleType:
    """The module in a file, loaded once for each content."""
    latest = f"{_LOADED}_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if not anew and latest in sys.modules:
        _refuse_foreign(path, name, _digest_of_loaded(sys.modules[latest]), place)
        return sys.modules[latest]
    if not path.is_file():
        raise ConfigError(f"{place}: there is no file {path}; check the path")
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    _refuse_foreign(path, name, digest, place)
    loaded = f"{latest}_{digest[:16]}"
    if loaded not in sys.modules:
        _execute(loaded, path, content, place)
    sys.modules[latest] = sys.modules[loaded]
    return sys.modules[loaded]


def _refuse_foreign(path: Path, name: str, digest: str, place: str) -> None:
    code = Code(f"{path}:{name}", str(path), digest)
    refuse_foreign([code], place, code.spelling)


def _digest_of_loaded(module: ModuleType) -> str:
    return str(module.__spec__.loader_state) if module.__spec__ is not None else ""


def _execute(name: str, path: Path, content: bytes, place: str) -> None:
    """Run a file's content as the module of this name: what was hashed, never compiled code that lies beside it."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise ConfigError(f"{place}: {path} cannot be imported; it must be a Python file")
    spec.loader_state = hashlib.sha256(content).hexdigest()
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))  # as for a script: modules beside it can be imported
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))


@contextmanager
def _said_of(place: str, remedy: str) -> Iterator[None]:
    """Whatever foreign code raises while it is imported, in one sentence."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(place) else f"{place} is refused: {error}") from None
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{place} cannot be imported ({type(error).__name__}: {said}); {remedy}") from error


def _package(offer: EntryPoint) -> str:
    return offer.dist.name if offer.dist is not None else offer.value
