"""What moves the pools of a replay: a schedule, or a law that reads the engine on every tick."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from simpy.events import Timeout

from fluidq._replay_workers import NEVER


class Tick(NamedTuple):
    """Running totals at the last reading: arrivals, first tokens and endings, output tokens, prefilled tokens."""

    time: float
    seen: tuple[float, ...]
    felt: tuple[float, ...]
    made: float
    prefilled: float


class Controller:
    """Sends commands to an engine; what it read last it keeps, for the changes since then."""

    def __init__(self, engine: Any):
        self.engine = engine
        self.last = Tick(0.0, (0, 0.0, 0.0, 0.0), (0, 0.0, 0, 0.0), 0.0, 0.0)

    def readings(self, index: int) -> dict[str, float]:
        """What a controller sees now: see `fluidq.replay.Control`. Means are over the time since the last call."""
        engine, before = self.engine, self.last
        now = engine.env.now
        for worker in engine.pools[1]:
            if worker.running:
                engine.advance(worker)
        backlog = engine.queued + engine.rate * sum(max(0.0, w.ends - now) for w in engine.pools[0] if w.busy >= 0)
        self.last = Tick(now, tuple(engine.seen), tuple(engine.felt), engine.made, engine.seen[1] - backlog)
        if index == 0:  # before the first tick the world was as on the first
            dt = float(engine.fleet.interval)
            n = int(np.searchsorted(engine.requests.arrival, dt))
            fields = engine.requests.computed, engine.requests.stored, engine.requests.output
            came, felt, made, prefilled = (n, *(float(x[:n].sum()) for x in fields)), before.felt, 0.0, 0.0
        else:
            dt = now - before.time
            came, felt = (
                [b - a for a, b in zip(*pair, strict=True)] for pair in zip(before[1:3], self.last[1:3], strict=True)
            )
            made, prefilled = engine.made - before.made, self.last.prefilled - before.prefilled
        n = max(came[0], 1)
        slots = len(engine.open[1]) * engine.slots
        running = sum(w.taken for w in engine.pools[1])
        ready, starting = [len(pool) for pool in engine.open], [len(pool) for pool in engine.starting]
        g_P, g_D = engine.per_worker
        values = {
            "index": index,
            "time": now,
            "rate": came[0] / dt,
            "isl": came[2] / n,
            "isl_computed": came[1] / n,
            "osl": came[3] / n,
            "queue": len(engine.queue),
            "queue_tokens": backlog,
            "buffered": len(engine.buffer),
            "buffered_tokens": sum(engine.stored[i] for i, _ in engine.buffer),
            "buffer_bytes": engine.buffered,
            "running": running,
            "kv_tokens": sum(w.context for w in engine.pools[1]),
            "ttft": felt[1] / max(felt[0], 1),
            "tpot": felt[3] / max(felt[2], 1),
            "prefill_rate": prefilled / dt,
            "decode_rate": made / dt,
            "prefill_ready": ready[0],
            "decode_ready": ready[1],
            "prefill_starting": starting[0],
            "decode_starting": starting[1],
            "prefill_asked": ready[0] + starting[0],
            "decode_asked": ready[1] + starting[1],
            "blocked": len(engine.blocked),
            "finished": felt[2],
            "pending": starting[0] * g_P + starting[1] * g_D,
            "gpus": (ready[0] + starting[0]) * g_P + (ready[1] + starting[1]) * g_D,
            "prefill_wait": backlog / (ready[0] * engine.rate) if ready[0] else NEVER,
            "decode_load": (running + len(engine.buffer)) / slots if slots else NEVER,
        }
        return {name: float(value) for name, value in values.items()}

    def controlled(self, decide: Callable[[float, dict[str, float]], tuple[int, int]]) -> Iterator[Timeout]:
        engine, index = self.engine, 0
        interval = float(engine.fleet.interval)
        while engine.more or engine.inside:
            engine.command(*decide(engine.env.now, self.readings(index)))
            index += 1
            yield Timeout(engine.env, index * interval - engine.env.now)

    def scheduled(self, steps: list[tuple[float, int, int]]) -> Iterator[Timeout]:
        engine = self.engine
        for at, prefill, decode in steps:
            if at > engine.env.now:
                yield Timeout(engine.env, at - engine.env.now)
            engine.command(prefill, decode)
