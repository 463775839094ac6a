"""The log of a search: JSON lines, one per step, with a judgement where one was made; read back, it can be drawn."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fluidq._atomic import write_whole
from fluidq._errors import InputError


@dataclass(frozen=True)
class Logged:
    """A log as read: `history` merit per step and start, `judged` (step, best hard merit), names of what moved."""

    history: np.ndarray
    judged: list[tuple[int, float]]
    labels: tuple[str, ...]


class RunLog:
    """A log being written. Its first line names the search; a resumed one keeps the lines before its step."""

    def __init__(self, path: Path, design: str, labels: Sequence[str]) -> None:
        self.path = path
        self._head = json.dumps({"search": design, "parameters": list(labels)})

    def open(self, step: int) -> None:
        """Start the file, or cut it to the first `step` steps."""
        lines = [self._head]
        if step and self.path.exists():
            old = self.path.read_text(encoding="utf-8").splitlines()
            lines += [line for line in old[1:] if _whole(line) and json.loads(line)["step"] <= step]
        write_whole(self.path, "\n".join(lines) + "\n")

    def write(self, descent: Any) -> None:
        """One line for the step just taken."""
        finite = lambda x: float(x) if math.isfinite(x) else None  # noqa: E731
        line = {
            "step": descent.step,
            "merit": [finite(x) for x in descent.history[-1]],
            "taken": [bool(x) for x in descent.sound],
            "coordinates": [[finite(x) for x in row] for row in descent.u],
        }
        if descent.judged_now:
            line["best_hard"] = descent.best_merit
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_log(path: str | Path) -> Logged:
    """The log of a search, for `fluidq.plot.tuning`. A last line that was cut off is left out.

    Raises InputError for a file that is no such log.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        head = json.loads(lines[0])
        labels = tuple(head["parameters"])
        rows = [json.loads(line) for line in lines[1:] if _whole(line)]
        history = np.array([[np.nan if x is None else x for x in row["merit"]] for row in rows])
        judged = [(row["step"], row["best_hard"]) for row in rows if "best_hard" in row]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"{str(path)!r} is not the log of a search: {error}.") from None
    return Logged(history, judged, labels)


def _whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False
