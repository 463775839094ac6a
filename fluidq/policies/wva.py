"""llm-d's Workload Variant Autoscaler: saturation (V1) and token capacity (V2), with the HPA that actuates them.

Every `GLOBAL_OPT_INTERVAL` the autoscaler publishes `wva_desired_replicas` per pool; an HPA with an external metric of
AverageValue 1 turns it into replicas. That HPA has a tolerance: at 10 replicas and more, one replica more or less is
within 10 %, is never actuated, and, since a desired size that differs from the current one blocks V1, blocks it for
good. A smaller tolerance, or `behavior=None` (the desired size acts at once), does not.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import least, most, positive_part, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates, windows
from fluidq.policies._wva import WVA, Use, WVAMemory, in_transition
from fluidq.policies._wva import chart_behavior as chart_behavior
from fluidq.policies._wva import sample_behavior as sample_behavior
from fluidq.policies.base import Asked, Reading, Tunable
from fluidq.policies.facts import Mix
from fluidq.policies.hpa import HPABehavior
from fluidq.policies.metrics import POOLS, Pool, check_fraction, check_kv_memory, check_positive, plain
from fluidq.policies.per_pool import worker_rate


class WVASaturationV1(WVA):
    """V1, saturation: one replica more or less per interval, from the spare of the replicas that are not saturated.

    A replica is saturated if its KV use >= kvCacheThreshold or its queue >= queueLengthThreshold. Over the others the
    spare is threshold - use. Up by 1 if the mean spare KV < kvSpareTrigger or the mean spare queue < queueSpareTrigger
    (if all are saturated the spare is 0). Down by 1 if at least two are not saturated and, after use N/(N-1), both
    spares are still at least the triggers. A pool that starts replicas, or whose published size is not reached, blocks
    both pools. Where a minute brought no reports nothing changes.

    Replicas: uses lie evenly within (1 - spread) and (1 + spread) times the mean (`fleet.spread`), hot ones hot in
    both signals; without a spread all are alike.
    Prefill's KV use is what waits in prefill memory for its transfer, where the buffer lies there.

    Attributes:
        kvCacheThreshold, kvSpareTrigger: fractions of the KV memory. queueLengthThreshold, queueSpareTrigger: requests.
        minReplicas, maxReplicas: of each pool [workers].
        behavior: the actuating HPA's; None: the published size acts at once.
        consolidation: False leaves N/(N-1) out of the test before a move down, to see what it is good for (static).
        pools: the pools it scales (static). GLOBAL_OPT_INTERVAL, sync_period: [s] (static).
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {
        "kvCacheThreshold": Tunable("share"),
        "queueLengthThreshold": Tunable("above", "queueSpareTrigger"),
        "kvSpareTrigger": Tunable("share"),
        "queueSpareTrigger": Tunable("positive"),
    }

    kvCacheThreshold: Scalar = 0.80
    queueLengthThreshold: Scalar = 5.0
    kvSpareTrigger: Scalar = 0.10
    queueSpareTrigger: Scalar = 3.0
    minReplicas: Scalar = 1.0
    maxReplicas: Scalar = math.inf
    behavior: HPABehavior | None = eqx.field(default_factory=chart_behavior)
    consolidation: bool = eqx.field(static=True, default=True)
    pools: tuple[str, ...] = eqx.field(static=True, default=POOLS)
    GLOBAL_OPT_INTERVAL: float = eqx.field(static=True, default=60.0)
    sync_period: float = eqx.field(static=True, default=15.0)

    def __check_init__(self) -> None:
        self._check()
        check_fraction("kvSpareTrigger", self.kvSpareTrigger, "of the KV memory")
        check_positive("queueSpareTrigger", self.queueSpareTrigger, "req")
        for trigger, threshold in (
            ("kvSpareTrigger", "kvCacheThreshold"),
            ("queueSpareTrigger", "queueLengthThreshold"),
        ):
            spare, full = plain(getattr(self, trigger)), plain(getattr(self, threshold))
            if spare is not None and full is not None and spare >= full:
                raise refuse(trigger, spare, f"below {threshold}, which is {full!r}: else an idle pool scales up")

    def prepare(self, load: Any, fleet: Fleet) -> "WVASaturationV1":
        """The policy itself, once the plant is known to state its KV memory."""
        check_kv_memory("kvCacheThreshold", fleet)
        return self

    def _own(self, fleet: Fleet) -> Array:
        return jnp.asarray(jnp.nan)  # the published size, which this law looks at itself

    def start(self, fleet: Fleet, asked: Asked) -> tuple[WVAMemory, ...]:
        """The published size is the present one."""
        return tuple(m._replace(own=m.desired) for m in super().start(fleet, asked))

    def _targets(
        self, own: list[Any], uses: list[Use], pools: list[Pool], reading: Reading, fleet: Fleet, width: Scalar | None
    ) -> tuple[list[Any], list[Array]]:
        free = 1.0 - in_transition(pools, own, width)
        sizes = [
            size + free * (pool.ready + self.move(use, pool.ready, fleet, width) - size)
            for size, use, pool in zip(own, uses, pools, strict=True)
        ]
        sizes = [most(self.minReplicas, least(self.maxReplicas, size)) for size in sizes]
        return list(sizes), sizes

    def move(self, use: Use, ready: Scalar, fleet: Fleet, width: Scalar | None) -> Array:
        """+1, 0 or -1 for a pool of `ready` replicas that use this much."""
        share = least(
            self._unsaturated(use.kv, self.kvCacheThreshold, fleet, width),
            self._unsaturated(use.queue, self.queueLengthThreshold, fleet, width),
        )
        kv, queue = (_coolest(x, share, fleet) for x in (use.kv, use.queue))
        spare_kv = positive_part(self.kvCacheThreshold - kv)
        spare_queue = positive_part(self.queueLengthThreshold - queue)
        calm = (1.0 - gates.below(spare_kv, self.kvSpareTrigger, width)) * (
            1.0 - gates.below(spare_queue, self.queueSpareTrigger, width)
        )
        count = share * ready
        after = ratio(count, count - 1.0, empty=1.0) if self.consolidation else 1.0
        left_kv = positive_part(self.kvCacheThreshold - kv * after)
        left_queue = positive_part(self.queueLengthThreshold - queue * after)
        safe = (1.0 - gates.below(left_kv, self.kvSpareTrigger, width)) * (
            1.0 - gates.below(left_queue, self.queueSpareTrigger, width)
        )
        two = gates.above(gates.whole_down(count, width), 1.5, width)
        return (1.0 - calm) - calm * two * safe

    def _unsaturated(self, mean: Array, threshold: Scalar, fleet: Fleet, width: Scalar | None) -> Array:
        """The share of replicas below the threshold; relaxed: as if they were spread by the width at least."""
        spread = jnp.asarray(fleet.spread, dtype=jnp.float64)
        if width is None:
            alike = jnp.where(mean < threshold, 1.0, 0.0)
        else:
            alike = _ramp(mean, threshold, width)
        return jnp.where(spread > 0, _ramp(mean, threshold, jnp.where(spread > 0, spread, 1.0)), alike)

    @property
    def hold_while_pending(self) -> bool:
        """A pool that starts replicas blocks both."""
        return True

    @property
    def up_step(self) -> float:
        """One replica."""
        return 1.0


def _ramp(mean: Scalar, threshold: Scalar, spread: Scalar) -> Array:
    """The share below the threshold of values spread evenly by +-spread around the mean."""
    return jnp.clip(ratio(threshold - mean * (1.0 - spread), 2.0 * spread * mean, empty=1.0), 0.0, 1.0)


def _coolest(mean: Array, share: Array, fleet: Fleet) -> Array:
    """Mean over the coolest `share` of the replicas."""
    return fleet.coolest(mean) + share * fleet.spread * mean


class WVATokenCapacityV2(WVA):
    """V2, token capacity: as many replicas as the demand in tokens needs; those that start are counted.

    Per replica k1 = KV tokens * kvCacheThreshold; k2 = tokens in use where its queue >= queueLengthThreshold (that is
    observed), else the mean of the last 10 observations, else N (I + O/2) with N = min(B O/(I + O), S) from the
    engine's arguments; capacity = min(k1, k2). Demand = tokens in use + queue * I.
    Up by ceil((demand/scaleUpThreshold - (ready + starting) capacity) / capacity),
    down by floor((ready capacity - demand/scaleDownBoundary) / capacity).
    Where a minute brought no reports nothing changes. Prefill engines have O = 1.

    Relaxed: whether a replica counts as observed is not softened (it chooses what the history keeps), so
    queueLengthThreshold is not tunable.

    Attributes:
        kvCacheThreshold, scaleUpThreshold, scaleDownBoundary: fractions. queueLengthThreshold: requests.
        max_num_batched_tokens: B [tok] of an engine. max_num_seqs: S; None: the plant's batch per decode worker.
        others: as in `WVASaturationV1`.
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {
        "kvCacheThreshold": Tunable("share"),
        "scaleUpThreshold": Tunable("share"),
        "scaleDownBoundary": Tunable("share"),
    }

    kvCacheThreshold: Scalar = 0.80
    queueLengthThreshold: Scalar = 5.0
    scaleUpThreshold: Scalar = 0.85
    scaleDownBoundary: Scalar = 0.70
    max_num_batched_tokens: Scalar = 8192.0
    max_num_seqs: Scalar | None = None
    minReplicas: Scalar = 1.0
    maxReplicas: Scalar = math.inf
    behavior: HPABehavior | None = eqx.field(default_factory=chart_behavior)
    pools: tuple[str, ...] = eqx.field(static=True, default=POOLS)
    GLOBAL_OPT_INTERVAL: float = eqx.field(static=True, default=60.0)
    sync_period: float = eqx.field(static=True, default=15.0)

    def __check_init__(self) -> None:
        self._check()
        check_fraction("scaleUpThreshold", self.scaleUpThreshold, "of the capacity")
        check_fraction("scaleDownBoundary", self.scaleDownBoundary, "of the capacity")
        check_positive("max_num_batched_tokens", self.max_num_batched_tokens, "tok")
        if self.max_num_seqs is not None:
            check_positive("max_num_seqs", self.max_num_seqs, "seq")
        low, high = plain(self.scaleDownBoundary), plain(self.scaleUpThreshold)
        if low is not None and high is not None and low >= high:
            raise refuse("scaleDownBoundary", low, f"below scaleUpThreshold, which is {high!r}")

    def prepare(self, load: Any, fleet: Fleet) -> "WVATokenCapacityV2":
        """The policy itself, once the plant is known to state its KV memory."""
        check_kv_memory("kvCacheThreshold", fleet)
        return self

    def _own(self, fleet: Fleet) -> Array:
        return windows.ring(jnp.nan, 10)  # observed k2

    def _targets(
        self, own: list[Any], uses: list[Use], pools: list[Pool], reading: Reading, fleet: Fleet, width: Scalar | None
    ) -> tuple[list[Any], list[Array]]:
        isl, some = windows.known(reading.isl)
        osl, _ = windows.known(reading.osl)
        histories, sizes = [], []
        for history, use, pool in zip(own, uses, pools, strict=True):
            history, capacity = self.capacity(history, use, pool, jnp.where(some, isl, 0.0), osl, fleet)
            histories.append(history)
            sizes.append(self.size(use, capacity, isl, pool, fleet, width))
        return histories, sizes

    def capacity(
        self, history: Array, use: Use, pool: Pool, isl: Scalar, osl: Scalar, fleet: Fleet
    ) -> tuple[Array, Array]:
        """The history of observed k2, and the tokens that one replica can hold: min(k1, k2)."""
        memory = pool.gpus * fleet.kv_tokens()
        k1, in_use = memory * self.kvCacheThreshold, memory * use.kv
        observed = (use.queue >= self.queueLengthThreshold) & (in_use > 0)
        history = jnp.where(observed, windows.push(history, in_use), history)
        remembered, known = windows.known(windows.mean(history))
        k2 = jnp.where(observed, in_use, jnp.where(known, remembered, self._derived(isl, osl, pool, fleet, k1)))
        return history, least(k1, k2)

    def _derived(self, isl: Scalar, osl: Scalar, pool: Pool, fleet: Fleet, k1: Scalar) -> Array:
        """k2 from the engine's arguments; k1 where no lengths are known."""
        out = jnp.asarray(osl) if pool.name == "decode" else jnp.where(jnp.asarray(osl) > 0, 1.0, 0.0)
        seqs = fleet.plant.batch * pool.gpus if self.max_num_seqs is None else self.max_num_seqs
        steady = least(ratio(self.max_num_batched_tokens * out, isl + out), seqs)
        return jnp.where(out > 0, steady * (isl + out / 2.0), k1)

    def size(self, use: Use, capacity: Array, isl: Scalar, pool: Pool, fleet: Fleet, width: Scalar | None) -> Array:
        """Replicas for this use at this capacity per replica."""
        demand = pool.ready * (use.kv * pool.gpus * fleet.kv_tokens() + use.queue * isl)
        need = positive_part(demand / self.scaleUpThreshold - (pool.ready + pool.starting) * capacity)
        spare = positive_part(pool.ready * capacity - demand / self.scaleDownBoundary)
        return pool.asked + gates.whole_up(need / capacity, width) - gates.whole_down(spare / capacity, width)

    @property
    def hold_while_pending(self) -> bool:
        """Replicas that start are counted, not waited for."""
        return False

    def gain(self, fleet: Fleet, mix: Mix) -> Scalar | None:
        """g [1/s] while no k2 has been observed: a queued request asks for I / (capacity * scaleUpThreshold)."""
        gains = []
        for name in self.pools:
            pool = Pool(name, 1.0, 0.0, 1.0, fleet.per_worker[POOLS.index(name)])
            nothing = Use(jnp.zeros(()), jnp.zeros(()), jnp.asarray(True))
            _, capacity = self.capacity(self._own(fleet), nothing, pool, mix.isl_stored, mix.osl, fleet)
            rate = worker_rate("queue_length", name, fleet, mix)
            gains.append(rate * mix.isl_stored / (capacity * self.scaleUpThreshold))
        return jnp.max(jnp.stack(gains))
