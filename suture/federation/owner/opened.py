"""Which secure sums this owner has sealed, and helped to open: on disk before that, over all runs, never forgotten.

Two sums of the same updates over sets that differ by one owner give that owner's update away. An owner therefore opens

- a step of a run for one set of survivors and one content, whatever session, process or job asks again;
- the same message for one set of survivors, in whatever run and under whatever terms: another run with the same seed begins
  with the same model, and gets the same updates, or, at another learning rate, their multiples;
- sums that follow from the data alone (`Method.of_data`), such as those of a census, for one set of survivors: no seed and
  no message changes them. An owner's policy can let this and the line above go (`secure_regroup`).

What was sealed for one set of members and then, unopened, for another is opened for the later one only: otherwise some could
open the one and some the other.

The same sum again tells nothing new, so a coordinator that was killed may ask for it again; of the survivors of before and
nobody else, so that an owner's update stands in no other sum, not even in one that others open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        self._same: dict[str, tuple[str, list[str]]] = {}
        """By what sums follow from: where the first of them was opened, and for whom."""
        self._sealed: dict[str, list[tuple[str, list[str]]]] = {}
        """By what sums follow from: where they were sealed, one after the other, and among whom."""

    def open(self, run: str, number: int, answered: Answered, survivors: Sequence[str]) -> None:
        """Write down that this sum is opened now; refuse it if another one has been."""
        self._file.append_after(lambda new: self._decided(new, run, number, answered, sorted(survivors), is_opened=True))

    def seal(self, run: str, number: int, answered: Answered, members: Sequence[str]) -> None:
        """Write down that this is sealed now; refuse it if it could not be opened."""

        def decided(new: Sequence[Line]) -> list[Line]:
            self._decided(new, run, number, answered, sorted(members), is_opened=False)
            line: Line = {"sealed": answered.sum, "same": [*answered.same], "members": [*sorted(members)]}
            self._remember(line)
            return [line]

        self._file.append_after(decided, sync=False)

    def check(self, run: str, number: int, answered: Answered, survivors: Sequence[str]) -> None:
        """Refuse a sum that could not be opened; nothing is written."""
        self._file.append_after(lambda new: self._decided(new, run, number, answered, sorted(survivors), is_opened=False))

    def _decided(
        self, new: Sequence[Line], run: str, number: int, answered: Answered, survivors: list[str], is_opened: bool
    ) -> list[Line]:
        for read in new:
            self._remember(read)
        step = self._steps.get((run, number))
        if step is not None and step[1] != survivors:
            raise Refused(f"step {number} has been opened for other survivors; {WHY}", Code.SECRECY)
        if step is not None and step[0] != answered.content:
            raise Refused(f"step {number} has been opened for another content; a step is opened once", Code.SECRECY)
        for same in () if answered.regroup else answered.same:
            where, before = self._same.get(same, ("", survivors))
            if before != survivors:
                raise Refused(answered.refusal(same, where), Code.SECRECY)
            if self._is_sealed_since(same, answered.sum):
                raise Refused(f"the same has been sealed for others since; {WHY}", Code.SECRECY)
        if step is not None or not is_opened:
            return []
        line: Line = {"run": run, "number": number, "content": answered.content, "survivors": [*survivors]}
        line |= {"of_data": answered.of_data} if answered.of_data else {}
        self._remember(line)
        return [line]

    def _is_sealed_since(self, same: str, sum: str) -> bool:
        """Whether after this sum another one was sealed among other members."""
        sums = self._sealed.get(same, [])
        mine = [place for place, (name, _) in enumerate(sums) if name == sum]
        return bool(mine) and any(members != sums[mine[-1]][1] for _, members in sums[mine[-1] + 1 :])

    def _remember(self, line: Line) -> None:
        if "sealed" in line:
            members, listed = line.get("members"), line.get("same")
            if not isinstance(members, list) or not isinstance(listed, list):
                raise damaged(self._file.path)
            for same in listed:
                self._sealed.setdefault(str(same), []).append((str(line["sealed"]), [str(name) for name in members]))
            return
        run, number, content, survivors = (line.get(key) for key in ("run", "number", "content", "survivors"))
        if not isinstance(run, str) or not isinstance(number, int) or not isinstance(survivors, list):
            raise damaged(self._file.path)
        names = [str(name) for name in survivors]
        self._steps[(run, number)] = (str(content), names)
        for same in Answered(str(content), of_data=str(line.get("of_data", ""))).same:
            self._same.setdefault(same, (f"step {number} of {run}", names))


@dataclass(frozen=True)
class Answered:
    """What the answer that is summed follows from."""

    content: str
    """The terms, the step and the message, as `TERMS STEP MESSAGE`."""
    sum: str = ""
    """In which sum, as `RUN NUMBER SESSION`."""
    of_data: str = ""
    """For a sum that follows from the data alone: its name, whatever terms and message say."""
    regroup: bool = False
    """The owner lets the same be opened for others."""

    @property
    def same(self) -> tuple[str, ...]:
        """What no two sums over different owners may have in common."""
        step_and_message = " ".join(self.content.split(" ")[-2:])
        return (f"message {step_and_message}", *([f"data {self.of_data}"] if self.of_data else []))

    def refusal(self, same: str, where: str) -> str:
        """Why a sum is not opened that has this in common with one of before."""
        let = "let the same owners take part, or let every owner allow it (secure_regroup = true in its policy)"
        if same.startswith("data "):
            return f"sums of the same data have been opened for other survivors in {where}; {WHY}; {let}"
        seed = "" if self.of_data else "take another seed, or "
        return f"the same message has been answered and opened for other survivors in {where}; {WHY}; {seed}{let}"


WHY = "two sums would give an owner away"
