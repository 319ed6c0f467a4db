"""What a form asks for, checked by the same plan as the command line makes, before anything is started.

Only names come in by a form: datasets and methods that are installed, protocols that come with Suture, graph folders that
were named when the dashboard was started. A file that spells code is let in with `suture trust`, never by a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from suture.config.layers import protocol_names
from suture.core.trusted import code_at, refuse_foreign
from suture.errors import ConfigError, SutureError, unknown
from suture.graph import datasets
from suture.runs import origin
from suture.runs.handed import spelled_in_words, text_of
from suture.runs.plan import Plan, plan_as_written

MOST_LINES, MOST_TEXT = 40, 300


class Misfit(ConfigError):
    """What is wrong, and in which field."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True)
class Wish:
    """A form that was filled in: texts as people type them; empty is what was not given."""

    dataset: str = "cora"
    methods: tuple[str, ...] = ("fedavg",)
    protocol: str = ""
    clients: str = ""
    seeds: str = ""
    overrides: tuple[str, ...] = ()

    @staticmethod
    def read(content: Mapping[str, object]) -> Wish:
        """Of what a page sends."""
        methods, overrides = _texts(content, "methods"), _texts(content, "overrides")
        one = {name: _text(content, name) for name in ("dataset", "protocol", "clients", "seeds")}
        return Wish(methods=methods, overrides=overrides, **one)

    def options(self, graphs: Mapping[str, Path]) -> list[str]:
        """As the command line takes them: a command and its options, each a word that cannot be taken for another one."""
        single = len(self.methods) == 1 and len(self.seed_numbers()) == 1
        words = ["run" if single else "compare"]
        words.append(f"--data={graphs[self.dataset]}" if self.dataset in graphs else f"--dataset={self.dataset}")
        words.append(f"--method={self.methods[0]}" if single else f"--methods={','.join(self.methods)}")
        if self.seeds:
            words.append(f"--seed={self.seed_numbers()[0]}" if single else f"--seeds={self.seeds}")
        words += [f"--{name}={value}" for name in ("protocol", "clients") if (value := getattr(self, name))]
        return words + [f"--set={line}" for line in self.overrides]

    def seed_numbers(self) -> tuple[int, ...]:
        """`0, 1` as numbers."""
        parts = [part.strip() for part in self.seeds.split(",") if part.strip()]
        if any(not part.isdecimal() for part in parts):
            raise Misfit("seeds", f"seeds must be whole numbers from 0 on, such as 0,1,2, got {self.seeds!r}")
        return tuple(int(part) for part in parts)


def _text(content: Mapping[str, object], name: str) -> str:
    value = content.get(name, "")
    if not isinstance(value, str) or len(value) > MOST_TEXT or "\0" in value or "\n" in value:
        raise Misfit(name, f"{name} must be one line of at most {MOST_TEXT} letters")
    return value.strip()


def _texts(content: Mapping[str, object], name: str) -> tuple[str, ...]:
    values = content.get(name, [])
    if not isinstance(values, list) or len(values) > MOST_LINES:
        raise Misfit(name, f"{name} must be at most {MOST_LINES} lines")
    return tuple(text for value in values if (text := _text({name: value}, name)))


@dataclass(frozen=True)
class Planner:
    """Makes plans of wishes."""

    graphs: Mapping[str, Path] = field(default_factory=dict)
    """Graph folders that may be asked for, by name."""

    def plan(self, wish: Wish) -> Plan:
        """Check a wish field by field: with which of them it becomes wrong is the one to blame."""
        if not wish.methods:
            raise Misfit("methods", "choose one method or several")
        self._refuse_code(wish)
        if wish.protocol and wish.protocol not in protocol_names():
            raise Misfit("protocol", str(unknown("protocol", wish.protocol, protocol_names())))
        given = Wish(self._name(wish), (), "", "", "", ())
        seeds = wish.seed_numbers()
        self._tried("dataset", given)
        for name in ("protocol", "methods", "clients", "seeds"):
            given = Wish(**{**vars(given), name: getattr(wish, name)})
            made = self._tried(name, given, seeds if given.seeds else ())
        for line in wish.overrides:
            given = Wish(**{**vars(given), "overrides": (*given.overrides, line)})
            made = self._tried("overrides", given, seeds)
        return made

    def _name(self, wish: Wish) -> str:
        if wish.dataset in self.graphs:
            with _blaming("dataset"):
                return origin.named(self.graphs[wish.dataset])
        if origin.is_folder(wish.dataset) or "/" in datasets.base_of(wish.dataset):
            raise Misfit("dataset", "name a graph of your own when the dashboard is started: suture dashboard --data FOLDER")
        return wish.dataset

    def _tried(self, name: str, given: Wish, seeds: Sequence[int] = ()) -> Plan:
        with _blaming(name):
            if given.clients and not given.clients.isdecimal():
                raise ConfigError(f"clients must be a whole number, got {given.clients!r}")
            return plan_as_written(
                given.dataset,
                given.methods or ("local",),
                protocol=given.protocol or None,
                clients=int(given.clients) if given.clients else None,
                seeds=seeds or None,
                overrides=given.overrides,
            )

    def _refuse_code(self, wish: Wish) -> None:
        """The command line lets in what its user names, and reads files for it; a page must not do so for the user."""
        named = {
            "dataset": spelled_in_words(wish.dataset),
            "methods": spelled_in_words(methods=wish.methods),
            "overrides": spelled_in_words(overrides=wish.overrides),
        }
        for name, spellings in named.items():
            with _blaming(name):
                refuse_foreign(map(code_at, spellings), "this form", " ".join(spellings))
        paths = [line for line in wish.overrides if "/" in text_of(line) and line not in named["overrides"]]
        if paths:
            raise Misfit("overrides", f"{paths[0]!r} names a file, which a page may not; start this from the command line")


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Whatever is wrong inside is this field's."""
    try:
        yield
    except SutureError as error:
        raise Misfit(name, str(error)) from error
