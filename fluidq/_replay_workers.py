"""The workers of the replay: what each holds, and until when."""

from collections import deque

NEVER = float("inf")


class Prefill:
    """A prefill worker: idle, busy with one request (also while it holds a finished one), or on its way."""

    __slots__ = ("born", "busy", "ends", "gone", "link_free", "number", "ready", "stopping")

    def __init__(self, number: int, born: float):
        self.number, self.born, self.ready, self.gone = number, born, NEVER, NEVER
        self.busy, self.ends, self.link_free, self.stopping = -1, 0.0, 0.0, False


class Decode:
    """A decode worker: `taken` slots (transfers included), `running` sequences, `steps` done, and the end of each."""

    __slots__ = (
        *("born", "context", "ends", "firsts", "gone", "kv", "last", "link_free", "number", "ready"),
        *("running", "steps", "stopping", "taken", "wake"),
    )

    def __init__(self, number: int, born: float):
        self.number, self.born, self.ready, self.gone = number, born, NEVER, NEVER
        self.taken, self.running, self.link_free, self.stopping = 0, 0, 0.0, False
        self.steps, self.context, self.kv, self.last, self.wake = 0.0, 0.0, 0.0, 0.0, NEVER
        self.ends: list[tuple[float, int]] = []  # heap of (steps at its end, request)
        self.firsts: deque[tuple[float, int]] = deque()  # (steps at its first token, request), in order
