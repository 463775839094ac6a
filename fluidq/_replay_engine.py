"""The event loop of the replay: requests, integer workers, slots, links and cold starts on SimPy's clock.

Callbacks on SimPy events, no process per request: about five events a request. Decode is shared exactly: a worker with
n sequences on g GPUs and a summed context S takes steps of a + (b n + c S) / g seconds, S grows by n tokens per output
token, so the time of any number of further steps is a quadratic, solved and not stepped through. Steps are taken to be
continuous: a sequence joins and leaves between two of them.
"""

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, no_type_check

import numpy as np
import simpy
from simpy.events import Timeout

from fluidq._replay_workers import NEVER, Decode, Prefill

# A sequence this many steps before its end has ended: rounding, far below a token.
ROUNDING = 1e-6
STAMPS = ("prefill_start", "prefill_end", "handoff", "admitted", "transfer_end", "first_token", "finish", "lost_at")


def packed(values: np.ndarray) -> array:
    """Numbers that are read and written one at a time: quicker than NumPy, and a quarter of a list's memory."""
    return array("d", np.ascontiguousarray(values, dtype=np.float64).tobytes())


@no_type_check  # called per event; what comes in was checked once, at the boundary
class Engine:
    """One run. `stamps` holds, for each request, the time [s] of each of `STAMPS`; inf for what did not happen."""

    def __init__(self, fleet: Any, requests: Any, seed: int):
        plant = fleet.plant
        self.env = simpy.Environment(0.0)
        self.fleet, self.requests = fleet, requests
        self.rng = np.random.default_rng(seed)
        self.rate = float(plant.prefill_worker) * float(plant.r_P)
        self.per_worker = float(plant.prefill_worker), float(plant.decode_worker)
        self.slots = int(float(plant.decode_worker) * float(plant.batch) + 1e-9)
        self.accept = float(plant.accept)
        a, b, c = (float(x) for x in (plant.t_step_a, plant.t_step_b, plant.t_step_c))
        self.law = a, b / self.per_worker[1], c / self.per_worker[1]
        self.send_rate = self.per_worker[0] * float(plant.nic_prefill)
        self.receive_rate = self.per_worker[1] * float(plant.nic_decode)
        self.fabric, self.fabric_free = float(plant.fabric), 0.0
        self.chunks = None if plant.chunks is None else float(plant.chunks)
        self.place, self.back_pressure = plant.place, bool(plant.back_pressure)
        # What a worker's memory holds; a request counts with half of its output, as in the fluid.
        limit = np.inf if plant.kv_capacity is None else float(plant.kv_capacity) * self.per_worker[1]
        self.memory = limit * (1 + 1e-12)

        n = requests.arrival.size
        self.arrival, self.computed = packed(requests.arrival), packed(requests.computed)
        self.stored, self.output = packed(requests.stored), packed(requests.output)
        self.kv = packed(requests.stored + 0.5 * requests.output)
        self.crossing = packed(float(plant.crossing) * requests.stored)
        held = plant.kappa if plant.place == "prefill" else plant.crossing
        self.bytes = packed(float(held) * requests.stored)
        self.stamps = {name: packed(np.full(n, NEVER)) for name in STAMPS}
        times = iter(self.stamps.values())
        self.prefill_start, self.prefill_end, self.handoff, self.admitted = (next(times) for _ in range(4))
        self.transfer_end, self.first_token, self.finish, self.lost_at = times
        self.prefilled_by, self.decoded_by = array("q", [-1]) * n, array("q", [-1]) * n

        self.queue: deque[int] = deque()
        self.buffer: deque[tuple[int, float]] = deque()
        self.blocked: deque[Prefill] = deque()
        self.idle: list[Prefill] = []
        self.levels: list[dict[int, Decode]] = [{} for _ in range(self.slots)]  # open workers by slots taken
        self.lowest = self.slots
        self.pools: tuple[list[Any], list[Any]] = ([], [])
        self.starting: tuple[list, list] = ([], [])
        self.open: tuple[dict, dict] = ({}, {})
        self.queued, self.buffered, self.inside, self.more = 0.0, 0.0, 0, True
        self.capacity, self.turn, self.actions = 0.0, 0, 0
        self.commands: list[tuple[float, int, int]] = []
        self.seen = [0, 0.0, 0.0, 0.0]  # arrivals and their tokens
        self.felt = [0, 0.0, 0, 0.0]  # first tokens and summed TTFT, endings and summed TPOT
        self.made = 0.0  # output tokens

    # Arrivals and prefill

    def arrivals(self, tell: Callable[[int], None] | None) -> Iterator[Timeout]:
        env, seen = self.env, self.seen
        for i, at in enumerate(self.arrival):
            if at > env.now:
                yield Timeout(env, at - env.now)
            self.inside += 1
            seen[0] += 1
            seen[1] += self.computed[i]
            seen[2] += self.stored[i]
            seen[3] += self.output[i]
            if self.idle:
                self.start(self.idle.pop(), i)
            else:
                self.queue.append(i)
                self.queued += self.computed[i]
            if tell is not None and not i & 1023:
                tell(i)
        self.more = False

    def start(self, worker: Prefill, i: int) -> None:
        env = self.env
        worker.busy = i
        # A sum of gaps may miss the arrival by its last bit.
        self.prefill_start[i] = max(env.now, self.arrival[i])
        self.prefilled_by[i] = worker.number
        work = self.computed[i] / self.rate
        worker.ends = env.now + work
        Timeout(env, work, worker).callbacks.append(self.prefilled)

    def prefilled(self, event: Timeout) -> None:
        worker = event._value
        i, now = worker.busy, self.env.now
        if self.prefill_end[i] == NEVER:
            self.prefill_end[i] = now
        if self.place != "prefill" and worker.link_free > now:
            # Its link still carries the request before: the worker holds this one.
            Timeout(self.env, worker.link_free - now, worker).callbacks.append(self.prefilled)
            return
        if self.buffer or self.blocked or not self.has_slot(i):
            if self.blocked or self.buffered + self.bytes[i] > self.capacity:
                if self.back_pressure:
                    self.blocked.append(worker)
                    return
                self.lost_at[i] = now
                self.inside -= 1
            else:
                self.store(worker, i)
        else:
            self.handoff[i] = now
            self.admit(i)
        self.release(worker)

    def release(self, worker: Prefill) -> None:
        worker.busy = -1
        if worker.stopping:
            worker.gone = self.env.now
        elif self.queue:
            i = self.queue.popleft()
            self.queued = self.queued - self.computed[i] if self.queue else 0.0
            self.start(worker, i)
        else:
            self.idle.append(worker)

    # Handoff

    def carry(self, free: float, rate: float, i: int) -> float:
        """When a first-come link that is taken until `free` has carried request `i`.

        In chunks each piece leaves as soon as it is computed, so what is sent at the end of prefill is mostly there.
        """
        now, time = self.env.now, self.crossing[i] / rate
        if self.chunks is None or self.prefill_end[i] < now:
            return max(now, free) + time
        first = self.prefill_start[i] + (now - self.prefill_start[i]) / self.chunks
        return max(max(free, first) + time, now + time / self.chunks)

    def send(self, i: int) -> float:
        """Over the prefill worker's link and the fabric."""
        worker = self.pools[0][self.prefilled_by[i]]
        worker.link_free = self.carry(worker.link_free, self.send_rate, i)
        if self.fabric == NEVER:
            return worker.link_free
        self.fabric_free = self.carry(self.fabric_free, self.fabric, i)
        # The worker waits for the fabric too, which is how a slow fabric holds prefill back.
        worker.link_free = max(worker.link_free, self.fabric_free)
        return worker.link_free

    def receive(self, worker: Decode, i: int) -> float:
        worker.link_free = self.carry(worker.link_free, self.receive_rate, i)
        return worker.link_free

    def store(self, worker: Prefill, i: int) -> None:
        """Into the buffer, over the links before it."""
        self.handoff[i] = self.env.now
        sent = self.env.now if self.place == "prefill" else self.send(i)
        if self.place == "decode" and self.open[1]:
            receivers = list(self.open[1].values())
            self.turn += 1
            sent = max(sent, self.receive(receivers[self.turn % len(receivers)], i))
        self.buffer.append((i, sent))
        self.buffered += self.bytes[i]

    def has_slot(self, i: int) -> bool:
        """Whether a worker has a slot, and memory where that is limited, for request `i`."""
        levels, k = self.levels, self.lowest
        while k < self.slots and not levels[k]:
            k += 1
        self.lowest = k
        if self.memory == NEVER or k == self.slots:
            return k < self.slots
        emptiest = min(self.open[1].values(), key=lambda w: (w.taken >= self.slots, w.kv, w.number))
        self.roomiest = emptiest
        return emptiest.taken < self.slots and emptiest.kv + self.kv[i] <= self.memory

    def admit(self, i: int, sent: float | None = None) -> None:
        """Give request `i` a slot on the emptiest worker; call after `has_slot`. `sent`: when it was in the buffer."""
        if self.memory == NEVER:
            worker = next(iter(self.levels[self.lowest].values()))
        else:
            worker = self.roomiest
            worker.kv += self.kv[i]
        k = worker.taken
        del self.levels[k][worker.number]
        worker.taken = k + 1
        if k + 1 < self.slots:
            self.levels[k + 1][worker.number] = worker
        now = self.env.now
        self.admitted[i] = now
        self.decoded_by[i] = worker.number
        if sent is None:
            done = max(self.send(i), self.receive(worker, i))
        elif self.place == "decode":
            done = sent
        else:
            done = max(sent if self.place == "host" else self.send(i), self.receive(worker, i))
        if done > now:
            Timeout(self.env, done - now, (worker, i)).callbacks.append(self.arrived)
        else:
            self.join(worker, i)

    def fill(self) -> None:
        """Move on whatever waits, first come first served, after a slot has become free or the buffer has grown."""
        buffer, blocked = self.buffer, self.blocked
        while buffer and self.has_slot(buffer[0][0]):
            i, sent = buffer.popleft()
            self.buffered = self.buffered - self.bytes[i] if buffer else 0.0
            self.admit(i, sent)
        while blocked:
            worker = blocked[0]
            i = worker.busy
            if not buffer and self.has_slot(i):
                self.handoff[i] = self.env.now
                self.admit(i)
            elif self.buffered + self.bytes[i] <= self.capacity:
                self.store(worker, i)
            else:
                return
            blocked.popleft()
            self.release(worker)

    # Decode

    def arrived(self, event: Timeout) -> None:
        self.join(*event._value)

    def join(self, worker: Decode, i: int) -> None:
        self.transfer_end[i] = self.env.now
        self.advance(worker)
        worker.running += 1
        # Steps see the stored tokens plus 0, 1, 2, ... output tokens: half a step below the continuous count.
        worker.context += self.stored[i] - 0.5 * self.accept
        heapq.heappush(worker.ends, (worker.steps + max(1.0, self.output[i] / self.accept), i))
        worker.firsts.append((worker.steps + 1.0, i))
        self.schedule(worker)

    def advance(self, worker: Decode) -> None:
        """Bring the worker's steps to now; stamp the first tokens on the way."""
        now, n = self.env.now, worker.running
        passed = now - worker.last
        if n and passed > 0:
            a, b, c = self.law
            base = a + b * n + c * worker.context
            growth = c * n * self.accept
            done = 2.0 * passed / (base + (base * base + 2.0 * growth * passed) ** 0.5)
            firsts, reach = worker.firsts, worker.steps + done + ROUNDING
            while firsts and firsts[0][0] <= reach:
                x, i = firsts.popleft()
                x = max(0.0, min(x - worker.steps, done))
                at = worker.last + (base + 0.5 * growth * x) * x
                self.first_token[i] = at
                self.felt[0] += 1
                self.felt[1] += at - self.arrival[i]
            worker.steps += done
            worker.context += n * self.accept * done
            self.made += n * self.accept * done
        worker.last = now

    def schedule(self, worker: Decode) -> None:
        """Wake at the next end, unless an earlier call is due: what joins only slows the others down."""
        a, b, c = self.law
        n, x = worker.running, worker.ends[0][0] - worker.steps
        wait = max(0.0, (a + b * n + c * worker.context + 0.5 * c * n * self.accept * x) * x)
        at = self.env.now + wait
        if at < worker.wake:
            worker.wake = at
            Timeout(self.env, wait, (worker, at)).callbacks.append(self.woken)

    def woken(self, event: Timeout) -> None:
        worker, at = event._value
        if at == worker.wake:
            worker.wake = NEVER
        self.advance(worker)
        ends, reach, now = worker.ends, worker.steps + ROUNDING, self.env.now
        left = 0
        while ends and ends[0][0] <= reach:
            _, i = heapq.heappop(ends)
            self.finish[i] = now
            worker.kv -= self.kv[i]
            tokens = self.output[i] - self.accept
            if tokens > 0:
                self.felt[2] += 1
                self.felt[3] += (now - self.first_token[i]) / tokens
            worker.context -= self.stored[i] - 0.5 * self.accept + max(self.output[i], self.accept)
            left += 1
        if left:
            worker.running -= left
            self.inside -= left
            if not worker.running:
                worker.steps = worker.context = 0.0
                worker.kv = 0.0 if worker.taken == left else worker.kv
            self.free(worker, left)
        if worker.running:
            self.schedule(worker)

    def free(self, worker: Decode, left: int) -> None:
        if worker.stopping:
            worker.taken -= left
            if not worker.taken:
                worker.gone = self.env.now
            return
        if worker.taken < self.slots:
            del self.levels[worker.taken][worker.number]
        worker.taken -= left
        self.offer(worker)
        if self.buffer or self.blocked:
            self.fill()

    def offer(self, worker: Decode) -> None:
        self.levels[worker.taken][worker.number] = worker
        self.lowest = min(self.lowest, worker.taken)

    # Workers

    def command(self, prefill: int, decode: int, *, ready: bool = False) -> None:
        """Bring the pools, starting workers included, to these sizes. `ready`: at once, for time 0."""
        wanted = (prefill, decode)
        change = [wanted[p] - len(self.open[p]) - len(self.starting[p]) for p in (0, 1)]
        moved = [self.moved(change, p) for p in (0, 1)]
        for pool in (0, 1):
            self.actions += 0 if ready else abs(change[pool])
            for k in range(change[pool]):
                self.begin(pool, ready, switched=k < moved[pool])
            if change[pool] < 0:
                self.stop(pool, -change[pool])
        if not self.commands or self.commands[-1][1:] != wanted:
            self.commands.append((self.env.now, *wanted))

    def moved(self, change: list[int], pool: int) -> int:
        """Workers of `pool` that start with the GPUs which the other pool gives up at the same moment."""
        if self.fleet.switch_delay is None or change[pool] <= 0 or change[1 - pool] >= 0:
            return 0
        given = -change[1 - pool] * self.per_worker[1 - pool]
        return min(change[pool], int(given / self.per_worker[pool] + 1e-9))

    def begin(self, pool: int, ready: bool, switched: bool) -> None:
        worker: Any = (Prefill, Decode)[pool](len(self.pools[pool]), self.env.now)
        self.pools[pool].append(worker)
        self.starting[pool].append(worker)
        fleet = self.fleet
        delay = float(fleet.switch_delay if switched else fleet.cold_start)
        if fleet.stages and not switched:
            delay = self.rng.gamma(fleet.stages, delay / fleet.stages)
        if ready or delay == 0:
            self.enter(pool, worker)
        else:
            Timeout(self.env, delay, (pool, worker)).callbacks.append(lambda event: self.enter(*event._value))

    def enter(self, pool: int, worker: Any) -> None:
        if worker.gone < NEVER:  # called off while it was starting
            return
        self.starting[pool].remove(worker)
        worker.ready = self.env.now
        self.open[pool][worker.number] = worker
        self.resize()
        if pool == 0:
            self.release(worker)
        else:
            worker.last = self.env.now
            self.offer(worker)
        self.fill()

    def resize(self) -> None:
        """The buffer grows with the pool that holds it; what it holds stays when it shrinks."""
        sizes = (len(pool) * g for pool, g in zip(self.open, self.per_worker, strict=True))
        self.capacity = float(self.fleet.plant.room(*sizes)) * (1 + 1e-12)

    def stop(self, pool: int, count: int) -> None:
        """Take ready workers first (idle or emptiest, then newest); call off starting ones only when none are left."""
        busy = (lambda w: w.busy >= 0) if pool == 0 else (lambda w: w.taken)
        for worker in sorted(self.open[pool].values(), key=lambda w: (busy(w), -w.number))[:count]:
            count -= 1
            del self.open[pool][worker.number]
            worker.stopping = True
            if pool == 0 and worker.busy < 0:
                self.idle.remove(worker)
            elif pool == 1 and worker.taken < self.slots:
                del self.levels[worker.taken][worker.number]
            if not busy(worker):
                worker.gone = self.env.now
        self.resize()
        for _ in range(count):
            self.starting[pool].pop().gone = self.env.now

    def run(self, until: float | None) -> float:
        """Run to `until` [s], or until nothing is left to do; the time at the end."""
        self.env.run(until)
        for worker in self.pools[1]:
            self.advance(worker)
        return self.env.now
