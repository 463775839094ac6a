"""Many searches side by side: each in its own thread, their closed loops gathered into few large calls."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fluidq._rows import Rows

# Rows per call: a few fixed shapes, so that a cell compiles each kind of run once or twice.
SIZES = (32, 64)


class Spent(Exception):
    """A search asks for more closed loops than it may have."""


class Server:
    """Answers `ask` once every search that still runs has asked; questions alike are answered by one call."""

    def __init__(self, answer: Callable[[Any, np.ndarray], Any]) -> None:
        """`answer`: a key and points (rows, parameters) to arrays of shape (rows, ...)."""
        self._answer = answer
        self._changed = threading.Condition()
        self._running = 0
        self._open: list[tuple[Any, np.ndarray, list[Any]]] = []

    def ask(self, key: Any, points: np.ndarray) -> Any:
        """Blocks until the answer is there; raises what `answer` raised."""
        box: list[Any] = []
        with self._changed:
            self._open.append((key, np.asarray(points, dtype=float), box))
            self._changed.notify_all()
            while not box:
                self._changed.wait()
        if isinstance(box[0], BaseException):
            raise box[0]
        return box[0]

    def run(self, searches: Mapping[Any, Callable[[], Any]]) -> dict[Any, Any]:
        """What each search returns, by name; the first error of any is raised once all have ended."""
        out: dict[Any, Any] = {}
        errors: list[BaseException] = []

        def one(name: Any, search: Callable[[], Any]) -> None:
            try:
                out[name] = search()
            except BaseException as error:
                errors.append(error)
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

        self._running = len(searches)
        threads = [threading.Thread(target=one, args=item, daemon=True) for item in searches.items()]
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                while self._running > len(self._open):
                    self._changed.wait()
                if not self._running:
                    break
                asked, self._open = self._open, []
            self._serve(asked)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return {name: out[name] for name in searches}

    def _serve(self, asked: list[tuple[Any, np.ndarray, list[Any]]]) -> None:
        for key in dict.fromkeys(key for key, _, _ in asked):
            alike = [(points, box) for k, points, box in asked if k == key]
            try:
                whole = self._answer(key, np.concatenate([points for points, _ in alike]))
            except BaseException as error:
                whole = error
            first = 0
            with self._changed:
                for points, box in alike:
                    piece = slice(first, first + len(points))
                    first = piece.stop
                    box.append(whole if isinstance(whole, BaseException) else _part(whole, piece))
                self._changed.notify_all()


def _part(whole: Any, piece: slice) -> Any:
    return jax.tree.map(lambda x: x[piece], whole)


def padded(call: Callable[[np.ndarray], Any], points: np.ndarray) -> Any:
    """`call` on blocks of `SIZES`, the last one filled up with its own last row."""
    parts, first = [], 0
    while first < len(points):
        left = len(points) - first
        size = next((s for s in SIZES if left <= s), SIZES[-1])
        index = np.minimum(np.arange(first, first + size), len(points) - 1)
        parts.append(jax.tree.map(lambda x, left=left: np.asarray(x)[:left], call(points[index])))
        first += size
    return jax.tree.map(lambda *pieces: np.concatenate(pieces), *parts)


class Served(Rows):
    """The rows of one search among several on the same space and load; `counted` stays its own."""

    server: Server | None = None

    @classmethod
    def through(cls, rows: Rows) -> tuple[Server, type["Served"]]:
        """A server of these rows, and the class of the searches that ask it."""

        def answer(key: tuple[str, float | None], points: np.ndarray) -> Any:
            kind, width = key
            # The draw goes along as the last column.
            return padded(lambda p: rows._blocks(kind, p[:, :-1], p[:, -1].astype(int), width), points)

        server = Server(answer)
        return server, type("ServedBy", (cls,), {"server": server})

    def _blocks(self, kind: str, u: Any, draws: Any, width: float | None) -> Any:
        if self.server is None:
            return super()._blocks(kind, u, draws, width)
        points = np.column_stack([np.asarray(u, dtype=float), np.asarray(draws, dtype=float)])
        return self.server.ask((kind, width), points)
