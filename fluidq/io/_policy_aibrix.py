"""AIBrix PodAutoscaler, autoscaling.aibrix.ai/v1alpha1: one object per pool, strategies APA, KPA and HPA."""

from typing import Any

from fluidq._errors import InputError, refuse, unknown
from fluidq.io import _policy_kubernetes as k8s
from fluidq.io._policy_metrics import Resolved, name_of, resolve
from fluidq.io._policy_node import Codec, Context, Node, Unrepresented, concrete, put, same
from fluidq.io._policy_values import DURATION, TEXT_FLAG, TEXT_NUMBER, WHOLE
from fluidq.policies.aibrix import AIBrixAPA, AIBrixKPA, APATarget, KPATarget
from fluidq.policies.metrics import POOLS

NAME, LAW = "aibrix", (AIBrixAPA, AIBrixKPA)
KIND, VERSION = "PodAutoscaler", "autoscaling.aibrix.ai/v1alpha1"

_BOUNDS: dict[str, Codec] = {"minReplicas": WHOLE, "maxReplicas": WHOLE}
_PREFIX = "autoscaling.aibrix.ai/"
_ANNOTATIONS: dict[str, tuple[str, Codec]] = {  # the annotation's name, the law's, how it is written
    "max-scale-up-rate": ("max_scale_up_rate", TEXT_NUMBER),
    "max-scale-down-rate": ("max_scale_down_rate", TEXT_NUMBER),
    "scale-up-tolerance": ("scale_up_tolerance", TEXT_NUMBER),
    "scale-down-tolerance": ("scale_down_tolerance", TEXT_NUMBER),
    "scale-up-cooldown-window": ("scale_up_cooldown_window", DURATION),
    "scale-down-cooldown-window": ("scale_down_cooldown_window", DURATION),
}
_KPA: dict[str, tuple[str, Codec]] = {
    "panic-threshold": ("panic_threshold", TEXT_NUMBER),
    "stable-window": ("stable_window", DURATION),
    "panic-window": ("panic_window", DURATION),
}
_LAWS = {"APA": (APATarget, AIBrixAPA), "KPA": (KPATarget, AIBrixKPA)}
_SOURCE = ("metricSourceType", "protocolType", "port", "path", "endpoint")


def detect(documents: list[Any]) -> bool:
    """By kind."""
    return k8s.is_kind(documents, KIND)


def read(ctx: Context, documents: list[Any]) -> AIBrixAPA | AIBrixKPA:
    """The law of the objects, which have one strategy. Raises InputError."""
    nodes = k8s.objects(ctx, documents, KIND)
    strategies = {pool: _strategy(node) for pool, node in nodes.items()}
    if len(set(strategies.values())) > 1:
        raise InputError(f"scalingStrategy differs between the pools ({strategies}); here both have the same one.")
    strategy = next(iter(strategies.values()))
    if strategy == "KPA":
        ctx.notes.append("KPA is read as coded: ceil(mean over pods / target), not times their number")
    _, law = _LAWS[strategy]
    return law(**{pool: _target(node, pool, strategy) for pool, node in nodes.items()})


def _strategy(node: Node) -> str:
    spec = Node(node.ctx, node.raw["spec"], (*node.path, "spec"))
    strategy = spec.raw.get("scalingStrategy")
    if strategy == "HPA":
        raise refuse(
            spec.where("scalingStrategy"), strategy, "APA or KPA; give the HorizontalPodAutoscaler that it makes"
        )
    if not isinstance(strategy, str) or strategy not in _LAWS:
        raise unknown(spec.where("scalingStrategy"), str(strategy), _LAWS)
    spec.mark("scalingStrategy", "subTargetSelector")
    return strategy


def _target(node: Node, pool: str, strategy: str) -> APATarget | KPATarget:
    ctx, spec = node.ctx, Node(node.ctx, node.raw["spec"], (*node.path, "spec"))
    given = spec.take(_BOUNDS)
    if "maxReplicas" not in given:
        raise refuse(spec.where("maxReplicas"), None, "given: AIBrix requires it")
    metadata = node.child("metadata")
    notes = metadata.child("annotations") if metadata else None
    if notes is not None:
        given |= _annotations(notes, strategy)
    source, found = _metric(spec, pool)
    value = source.take({"targetValue": TEXT_NUMBER}).get("targetValue")
    if value is None:
        raise refuse(source.where("targetValue"), None, "given: the target per pod")
    if 0 < value <= 1 and same(found.scale, 0.01):
        raise refuse(source.where("targetValue"), value, f"in per cent, as the metric is: write {100 * value:g}")
    ctx.notes += found.notes
    ctx.extra += [Unrepresented(source.where("targetMetric"), source.raw["targetMetric"], why) for why in found.unlike]
    law, _ = _LAWS[strategy]
    with spec.at():
        return law(metric=found.signal, targetValue=value * found.scale, **given)


def _table(strategy: str) -> dict[str, tuple[str, Codec]]:
    return {**_ANNOTATIONS, **(_KPA if strategy == "KPA" else {})}


def _keys(node: Node, strategy: str) -> dict[str, tuple[str, Codec]]:
    """The annotations that are given, by their full keys: generic, or older with the strategy in front."""
    out = {}
    for name, entry in _table(strategy).items():
        for key in (_PREFIX + name, f"{strategy.lower()}.{_PREFIX}{name}"):
            if node.has(key):
                if entry in out.values():
                    raise refuse(node.where(key), node.raw[key], f"given once: {_PREFIX}{name} is there too")
                out[key] = entry
    return out


def _annotations(node: Node, strategy: str) -> dict[str, Any]:
    node.know(*(_PREFIX + name for name in (*_ANNOTATIONS, *_KPA, "scale-to-zero")))
    given = {}
    for key, (name, codec) in _keys(node, strategy).items():
        node.mark(key)
        given[name] = codec.read(node.raw[key], node.where(key))
    if given.get("panic_threshold", 0) >= 20:
        value = given["panic_threshold"]
        raise refuse(node.where(f"{_PREFIX}panic-threshold"), value, f"a ratio: write {value / 100:g} for {value:g} %")
    zero = f"{_PREFIX}scale-to-zero"
    if node.has(zero) and not TEXT_FLAG.read(node.raw[zero], node.where(zero)):
        node.mark(zero)
    for key in node.raw:
        if _PREFIX not in key:
            node.mark(key)  # of another controller
    return given


def _metric(spec: Node, pool: str) -> tuple[Node, Resolved]:
    """The first source whose metric fluidq has; the others get a reason."""
    chosen, why = None, []
    for source in spec.children("metricsSources"):
        source.know("targetMetric", "targetValue", *_SOURCE)
        name = source.raw.get("targetMetric")
        if not isinstance(name, str):
            raise refuse(source.where("targetMetric"), name, "the name of a metric")
        # The window value is a mean over pods, which the law multiplies or forgets to: the target is per pod.
        found = resolve(name, spec.ctx.metrics, pool, "AverageValue")
        if isinstance(found, str):
            why.append(found)
        elif chosen is None:
            source.mark("targetMetric", *_SOURCE)
            chosen = source, found
            continue
        else:
            why.append("a second metric: the law has one, AIBrix takes the largest")
        source.leave("", why[-1])
    if chosen is None:
        raise InputError(
            f"{spec.where('metricsSources')} has no metric that fluidq has: {'; '.join(why) or 'the list is empty'}."
        )
    return chosen


def write(ctx: Context, documents: list[Any], policy: AIBrixAPA | AIBrixKPA) -> None:
    """Set what differs from the documents; a pool without an object gets one."""
    strategy = "KPA" if isinstance(policy, AIBrixKPA) else "APA"
    nodes = k8s.objects(ctx, documents, KIND) if documents else {}
    for pool in POOLS:
        law = getattr(policy, pool)
        if law is None:
            continue
        if pool not in nodes:
            documents.append(_new(law, pool, strategy))
            nodes[pool] = Node(ctx, documents[-1], (len(documents) - 1,))
        raw = nodes[pool].raw
        spec = Node(ctx, raw["spec"], (*nodes[pool].path, "spec"))
        put(spec.raw, _BOUNDS, law)
        source, found = _metric(spec, pool)
        if found.signal != law.metric:
            raise InputError(
                f"{source.where('targetMetric')} is {found.signal} and the policy has {law.metric}; write the policy "
                "without the document it came from."
            )
        value = concrete(law.targetValue) / found.scale
        if not same(TEXT_NUMBER.read(source.raw["targetValue"], "targetValue"), value):
            source.raw["targetValue"] = TEXT_NUMBER.write(float(f"{value:.12g}"))
        _set_annotations(ctx, raw, law, strategy)


def _set_annotations(ctx: Context, raw: dict[str, Any], law: Any, strategy: str) -> None:
    metadata = raw.setdefault("metadata", {})
    held = dict(metadata.get("annotations") or {})
    given = _keys(Node(ctx, held, (0, "metadata", "annotations")), strategy)
    there = {name for name, _ in given.values()}
    rest = {_PREFIX + key: entry for key, entry in _table(strategy).items() if entry[0] not in there}
    both = {**given, **rest}
    put(held, {key: codec for key, (_, codec) in both.items()}, law, {key: name for key, (name, _) in both.items()})
    if held != (metadata.get("annotations") or {}):
        metadata["annotations"] = held


def _new(law: Any, pool: str, strategy: str) -> dict[str, Any]:
    source = {
        "metricSourceType": "pod",
        "protocolType": "http",
        "port": "8000",
        "path": "metrics",
        "targetMetric": name_of(law.metric),
        "targetValue": TEXT_NUMBER.write(concrete(law.targetValue)),
    }
    return k8s.new_object(
        KIND, VERSION, pool, minReplicas=1, maxReplicas=1, metricsSources=[source], scalingStrategy=strategy
    )
