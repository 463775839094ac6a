"""What the tests of the products' laws share: readings, a fleet, single decisions, judgements of closed loops."""

from operator import attrgetter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fluidq.policies.base import Asked, Reading
from fluidq.simulate import Load, load_of, simulate
from fluidq.workload import default_workload
from tests.helpers import small_fleet, small_plant

FLEET = small_fleet(small_plant(kv_capacity=200e3), budget=400.0)
NAN = float("nan")


def reading(prefill=4.0, decode=4.0, index=0, starting=(0.0, 0.0), **metrics):
    """A reading of a fleet with these workers asked for, `starting` of them on their way; metrics 0 unless given."""
    known = dict.fromkeys(Reading._fields, 0.0)
    known |= {"index": index, "time": 15.0 * index, "prefill_asked": prefill, "decode_asked": decode}
    known |= {"prefill_starting": starting[0], "decode_starting": starting[1]}
    known |= {"prefill_ready": prefill - starting[0], "decode_ready": decode - starting[1]}
    return Reading(**{name: jnp.asarray(value) for name, value in {**known, **metrics}.items()})


def start(policy, now, fleet=FLEET):
    """The memory of a policy that finds the workers of this reading."""
    return policy.start(fleet, Asked(now.prefill_asked, now.decode_asked))


def asked(policy, now, fleet=FLEET, width=None):
    """Workers asked for on the first tick."""
    _, workers = policy.decide(start(policy, now, fleet), now, fleet, width)
    return tuple(round(float(n), 9) for n in workers)


def follow(policy, ticks, signals, workers=(4.0, 4.0), cold_start=0, fleet=FLEET):
    """Decode workers asked for over `ticks` ticks.

    `signals(tick, ready)` are the metrics; starts arrive `cold_start` ticks after they were asked for.
    """
    decide = eqx.filter_jit(lambda m, now: policy.decide(m, now, fleet, None))
    history = [workers] * (cold_start + 1)
    memory = start(policy, reading(*workers), fleet)
    for tick in range(ticks):
        now, old = history[-1], history[-1 - cold_start]
        coming = tuple(max(0.0, a - b) for a, b in zip(now, old, strict=True))
        ready = tuple(a - b for a, b in zip(now, coming, strict=True))
        memory, out = decide(memory, reading(*now, index=tick, starting=coming, **signals(tick, ready)))
        history.append(tuple(float(n) for n in out))
    return [decode for _, decode in history[cold_start + 1 :]]


def random_reading(rng, missing=False):
    """Workers and signals over the range in which laws decide."""
    workers = rng.integers(1, 20, 2).astype(float)
    starting = tuple(float(rng.integers(0, n)) if rng.random() < 0.3 else 0.0 for n in workers)
    metrics = {
        "queue": rng.exponential(30.0),
        "queue_tokens": rng.exponential(60e3),
        "buffered": rng.exponential(10.0),
        "buffered_tokens": rng.exponential(20e3),
        "running": rng.uniform(0, 64) * workers[1],
        "kv_tokens": rng.uniform(0, 200e3) * workers[1],
        "ttft": rng.exponential(1.0),
        "tpot": rng.uniform(0.02, 0.06),
        "prefill_rate": rng.uniform(0, 1e4) * workers[0],
        "decode_rate": rng.uniform(0, 2e3) * workers[1],
        "rate": rng.uniform(0, 30),
        "isl": rng.uniform(500, 3000),
        "osl": rng.uniform(50, 400),
    }
    if missing:
        metrics = {name: NAN for name in metrics}
    return reading(*workers, starting=starting, **metrics)


def gaps(policy, widths, draws=40, fleet=FLEET):
    """Mean distance of the relaxed decision from the hard one over random readings, for each width."""
    hard = eqx.filter_jit(lambda now: policy.decide(start(policy, now, fleet), now, fleet, None)[1])
    soft = eqx.filter_jit(lambda now, width: policy.decide(start(policy, now, fleet), now, fleet, width)[1])
    rng = np.random.default_rng(7)
    readings = [random_reading(rng) for _ in range(draws)]
    return [
        np.mean([abs(float(a - b)) for r in readings for a, b in zip(soft(r, jnp.asarray(w)), hard(r), strict=True)])
        for w in widths
    ]


def moves(policy, draws=40):
    """How many of those hard decisions change something: a test of a law that never acts shows nothing."""
    rng = np.random.default_rng(7)
    readings = [random_reading(rng) for _ in range(draws)]
    return sum(asked(policy, r) != (float(r.prefill_asked), float(r.decode_asked)) for r in readings)


def busy_load(ticks=160):
    """The rising morning of the default workload: two and a half hours, somewhat heavier."""
    day = load_of(default_workload(seed=0).scaled(1.2), 15.0)
    return Load(*(part[1900 : 1900 + ticks] for part in day))


def judge(policy, names, width=0.3, fleet=FLEET, load=None):
    """One closed loop: relative errors of the derivative along each name, and costs of the hard and the sharp law.

    Returns (derivatives, central differences, hard cost, cost at width 1e-8).
    """
    load = busy_load() if load is None else load

    def get(policy):
        return [attrgetter(name)(policy) for name in names]

    def cost(x, width):
        tuned = eqx.tree_at(get, policy, [x[i] for i in range(len(names))])
        return simulate(fleet, load, tuned, width=width, record=False).cost.cost

    both = jax.jit(lambda x, v, width: jax.jvp(lambda y: cost(y, width), (x,), (v,)))
    x, width = jnp.array([float(v) for v in get(policy)]), jnp.asarray(width)
    slopes, differences = [], []
    for i, value in enumerate(x):
        unit = jnp.zeros(len(names)).at[i].set(1.0)
        h = 1e-6 * value
        slopes.append(float(both(x, unit, width)[1]))
        up, down = (float(both(x + s * h * unit, unit, width)[0]) for s in (1.0, -1.0))
        differences.append((up - down) / (2 * float(h)))
    sharp = float(both(x, jnp.zeros(len(names)), jnp.asarray(1e-8))[0])
    hard = float(simulate(fleet, load, policy, record=False).cost.cost)
    return np.array(slopes), np.array(differences), hard, sharp


def finite_reverse(policy, names, fleet=FLEET):
    """Reverse-mode gradients of single decisions at zeros, at missing samples and in the middle of things."""

    def get(policy):
        return [attrgetter(name)(policy) for name in names]

    def total(x, now, width):
        tuned = eqx.tree_at(get, policy, [x[i] for i in range(len(names))])
        return sum(tuned.decide(start(tuned, now, fleet), now, fleet, width)[1])

    gradient = jax.jit(jax.grad(total))
    x = jnp.array([float(v) for v in get(policy)])
    rng = np.random.default_rng(3)
    cases = [reading(), random_reading(rng, missing=True), random_reading(rng), random_reading(rng)]
    return all(np.all(np.isfinite(gradient(x, now, jnp.asarray(w)))) for now in cases for w in (0.1,))
