"""KEDA ScaledObject, keda.sh/v1alpha1: one object per pool, one Prometheus trigger each."""

from typing import Any

from fluidq._errors import InputError, refuse
from fluidq.io import _policy_kubernetes as k8s
from fluidq.io._policy_metrics import query_of, resolve
from fluidq.io._policy_node import Codec, Context, Node, Unrepresented, concrete, put, same
from fluidq.io._policy_values import FLAG, TEXT, TEXT_FLAG, TEXT_NUMBER, WHOLE
from fluidq.policies.keda import KEDA, KEDATarget
from fluidq.policies.metrics import POOLS

NAME, LAW = "keda", KEDA
KIND, VERSION = "ScaledObject", "keda.sh/v1alpha1"
_SPEC: dict[str, Codec] = {
    name: WHOLE for name in ("pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount")
}
_TRIGGER: dict[str, Codec] = {"metricType": TEXT, "useCachedMetrics": FLAG}
_METADATA: dict[str, Codec] = {
    "threshold": TEXT_NUMBER,
    "activationThreshold": TEXT_NUMBER,
    "ignoreNullValues": TEXT_FLAG,
}
_HPA = ("advanced", "horizontalPodAutoscalerConfig")


def detect(documents: list[Any]) -> bool:
    """By kind."""
    return k8s.is_kind(documents, KIND)


def read(ctx: Context, documents: list[Any]) -> KEDA:
    """The law of the objects. Raises InputError."""
    return KEDA(**{pool: _target(node, pool) for pool, node in k8s.objects(ctx, documents, KIND).items()})


def _target(node: Node, pool: str) -> KEDATarget:
    ctx, spec = node.ctx, Node(node.ctx, node.raw["spec"], (*node.path, "spec"))
    given = spec.take(_SPEC)
    spec.know("triggers", "advanced", "idleReplicaCount", "initialCooldownPeriod", "fallback")
    trigger, names, query = _trigger(spec, pool)
    given |= trigger.take(_TRIGGER) | names.take(_METADATA)
    if "threshold" not in given:
        raise refuse(names.where("threshold"), None, "given: the target of the query")
    for name in ("pollingInterval", "cooldownPeriod"):
        if name in given:
            given[name] = float(given[name])
    if "minReplicaCount" in given:
        given["minReplicaCount"] = int(given["minReplicaCount"])
    found = resolve(query, ctx.metrics, pool, given.get("metricType", "AverageValue"))
    assert not isinstance(found, str)
    ctx.notes += found.notes
    ctx.extra += [Unrepresented(names.where("query"), query, why) for why in found.unlike]
    # With `100 * x` the query is in per cent, and so are its thresholds.
    _check_scale(given["threshold"], found.scale, names.where("threshold"))
    for name in ("threshold", "activationThreshold"):
        if name in given:
            given[name] *= found.scale
    advanced = spec.child("advanced")
    config = advanced.child(_HPA[1]) if advanced else None
    if advanced is not None:
        advanced.know("restoreToOriginalReplicaCount", "scalingModifiers")
    if config is not None:
        config.know("name", "behavior")
    with spec.at():
        return KEDATarget(found.signal, behavior=k8s.read_behavior(config and config.child("behavior")), **given)


def _check_scale(value: float, scale: float, where: str) -> None:
    if 0 < value <= 1 and same(scale, 0.01):
        raise refuse(where, value, f"in per cent, as the query is: write {100 * value:g} for {value:g}")


def _trigger(spec: Node, pool: str) -> tuple[Node, Node, str]:
    """The first trigger whose query fluidq has, its metadata, and the query; the others get a reason."""
    chosen, why = None, []
    for trigger in spec.children("triggers"):
        trigger.know("type", "metadata", "name", "authenticationRef")
        kind = trigger.raw.get("type")
        names = trigger.child("metadata")
        if kind != "prometheus" or names is None:
            reason = f"a trigger of type {kind} is not modelled; prometheus is"
        else:
            query = names.raw.get("query")
            if not isinstance(query, str):
                raise refuse(names.where("query"), query, "a PromQL query")
            found = resolve(query, spec.ctx.metrics, pool, str(trigger.raw.get("metricType", "AverageValue")))
            if isinstance(found, str):
                reason = found
            elif chosen is None:
                trigger.mark("type", "name")
                names.mark("query", "serverAddress", "metricName")
                names.know("namespace", "authModes", "customHeaders", "unsafeSsl", "queryParameters", "timeout")
                chosen = trigger, names, query
                continue
            else:
                reason = "a second trigger: the law has one, KEDA takes the larger of both"
        why.append(reason)
        trigger.leave("", reason)
    if chosen is None:
        raise InputError(
            f"{spec.where('triggers')} has no query that fluidq has: {'; '.join(why) or 'the list is empty'}."
        )
    return chosen


def write(ctx: Context, documents: list[Any], policy: KEDA) -> None:
    """Set what differs from the documents; a pool without an object gets one."""
    nodes = k8s.objects(ctx, documents, KIND) if documents else {}
    for pool in POOLS:
        law = getattr(policy, pool)
        if law is None:
            continue
        if pool not in nodes:
            documents.append(_new(law, pool))
            nodes[pool] = Node(ctx, documents[-1], (len(documents) - 1,))
        node = nodes[pool]
        spec = node.raw["spec"]
        put(spec, _SPEC, law)
        trigger, names, query = _trigger(Node(ctx, spec, (*node.path, "spec")), pool)
        found = resolve(query, ctx.metrics, pool, law.metricType)
        if isinstance(found, str) or found.signal != law.metric:
            raise InputError(
                f"{names.where('query')} is not {law.metric}; write the policy without the document it came from."
            )
        put(trigger.raw, _TRIGGER, law)
        metadata = names.raw
        for name in ("threshold", "activationThreshold"):
            value = concrete(getattr(law, name)) / found.scale
            old = metadata.get(name)
            if not same(0.0 if old is None else TEXT_NUMBER.read(old, name), value):
                metadata[name] = TEXT_NUMBER.write(float(f"{value:.12g}"))
        put(metadata, {"ignoreNullValues": TEXT_FLAG}, law)
        advanced = (spec.get("advanced") or {}).get(_HPA[1])
        mine = advanced if advanced is not None else {}
        k8s.write_behavior(mine, law.behavior)
        if mine and advanced is None:
            spec["advanced"] = {**(spec.get("advanced") or {}), _HPA[1]: mine}


def _new(law: KEDATarget, pool: str) -> dict[str, Any]:
    metadata = {
        "serverAddress": "http://prometheus:9090",
        "query": query_of(law.metric, law.metricType),
        "threshold": TEXT_NUMBER.write(concrete(law.threshold)),
    }
    made = k8s.new_object(KIND, VERSION, pool, triggers=[{"type": "prometheus", "metadata": metadata}])
    made["spec"]["scaleTargetRef"] = {"name": pool}
    return made
