"""TensorBoard: event files, a folder for each run; needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from suture.core.storage import real_path
from suture.errors import IntegrityError
from suture.trackers.tracker import Tracked, Tracker


class TensorBoard(Tracker):
    """`tensorboard --logdir FOLDER` shows them."""

    name: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"

    def begin(self, run: Tracked) -> str:
        """A run that goes on takes back all that it had written: its rounds come again."""
        from torch.utils.tensorboard import SummaryWriter

        name = run.known_as or self._free(f"{run.group}/{run.name}")
        if not real_path(self.folder / name).is_relative_to(real_path(self.folder)):
            raise IntegrityError(
                f"{name!r} leads out of {self.folder}; delete the file that says so, and track the run anew"
            )
        if run.known_as is not None:
            # Readers order files by second and process number, so a later file could not be sure to undo an earlier one.
            for before in (self.folder / name).glob("events.out.tfevents.*"):
                before.unlink()
        self.writer: Any = SummaryWriter(str(self.folder / name))
        self.writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in run.values.items()))
        return name

    def _free(self, name: str) -> str:
        """Runs of one name in different folders are different runs."""
        names = (name if number == 1 else f"{name}-{number}" for number in range(1, 10**6))
        return next(name for name in names if not (self.folder / name).exists())

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar each."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def end(self, finished: bool, results: Mapping[str, float]) -> None:
        """Results stand beside the curves, under `result`."""
        for name, value in results.items():
            self.writer.add_scalar(f"result/{name}", value, 0)
        self.writer.close()
