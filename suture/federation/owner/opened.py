"""Which secure sums this owner has helped to open: on disk before the help is given, over all runs, never forgotten.

Two sums of the same updates over sets that differ by one owner give that owner's update away. An owner therefore opens

- a step of a run for one set of survivors and one content, whatever session, process or job asks again;
- the same content under the same terms for one set of survivors, in whatever run or step: another run with the same seed
  begins with the same model, and gets the same updates.

The same sum again tells nothing new, so a coordinator that was killed may ask for it again; of the survivors of before and
nobody else, so that an owner's update stands in no other sum, not even in one that others open.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suture.core.chained import ChainedFile, Line
from suture.core.storage import damaged
from suture.federation.wire.reasons import Code, Refused

OPENED = "opened.jsonl"


class OpenedSums:
    """The record of one owner."""

    def __init__(self, home: Path) -> None:
        self._file = ChainedFile(home / OPENED, "record of opened sums")
        self._steps: dict[tuple[str, int], tuple[str, list[str]]] = {}
        self._contents: dict[str, tuple[str, list[str]]] = {}

    def open(self, run: str, number: int, content: str, survivors: Sequence[str]) -> None:
        """Write down that this sum is opened now; refuse it if another one has been."""
        self._file.append_after(lambda new: self._decided(new, run, number, content, sorted(survivors), is_opened=True))

    def check(self, run: str, number: int, content: str, survivors: Sequence[str]) -> None:
        """Refuse a sum that could not be opened; nothing is written."""
        self._file.append_after(lambda new: self._decided(new, run, number, content, sorted(survivors), is_opened=False))

    def _decided(
        self, new: Sequence[Line], run: str, number: int, content: str, survivors: list[str], is_opened: bool
    ) -> list[Line]:
        for read in new:
            self._remember(read)
        step = self._steps.get((run, number))
        if step is not None and step[1] != survivors:
            raise Refused(f"step {number} has been opened for other survivors; {WHY}", Code.SECRECY)
        if step is not None and step[0] != content:
            raise Refused(f"step {number} has been opened for another content; a step is opened once", Code.SECRECY)
        if content in self._contents and self._contents[content][1] != survivors:
            where = self._contents[content][0]
            raise Refused(
                f"the same message has been answered and opened for other survivors in {where}; {WHY}; "
                "take another seed, or let the same owners take part",
                Code.SECRECY,
            )
        if step is not None or not is_opened:
            return []
        line: Line = {"run": run, "number": number, "content": content, "survivors": [*survivors]}
        self._remember(line)
        return [line]

    def _remember(self, line: Line) -> None:
        run, number, content, survivors = (line.get(key) for key in ("run", "number", "content", "survivors"))
        if not isinstance(run, str) or not isinstance(number, int) or not isinstance(survivors, list):
            raise damaged(self._file.path)
        names = [str(name) for name in survivors]
        self._steps[(run, number)] = (str(content), names)
        self._contents.setdefault(str(content), (f"step {number} of {run}", names))


WHY = "two sums would give an owner away"
