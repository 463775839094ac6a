"""Kubernetes HorizontalPodAutoscaler, autoscaling/v2: one object per pool."""

from typing import Any

import numpy as np

from fluidq._errors import InputError, refuse
from fluidq.io import _policy_kubernetes as k8s
from fluidq.io._policy_metrics import name_of, resolve
from fluidq.io._policy_node import Codec, Context, Node, Unrepresented, concrete, put, same
from fluidq.io._policy_values import QUANTITY, WHOLE
from fluidq.policies.hpa import HPA, HPAMetric, HPATarget
from fluidq.policies.metrics import POOLS

NAME, LAW = "hpa", HPA
KIND, VERSION = "HorizontalPodAutoscaler", "autoscaling/v2"
_BOUNDS: dict[str, Codec] = {"minReplicas": WHOLE, "maxReplicas": WHOLE}
_VALUES = {"Value": "value", "AverageValue": "averageValue"}


def detect(documents: list[Any]) -> bool:
    """By kind."""
    return k8s.is_kind(documents, KIND)


def read(ctx: Context, documents: list[Any]) -> HPA:
    """The law of the objects. Raises InputError."""
    return HPA(**{pool: _target(node, pool) for pool, node in k8s.objects(ctx, documents, KIND).items()})


def _target(node: Node, pool: str) -> HPATarget:
    version = node.raw.get("apiVersion")
    if version not in (VERSION, "autoscaling/v2beta2"):
        raise refuse(node.where("apiVersion"), version, f"{VERSION!r}: v1 scales on CPU only")
    spec = Node(node.ctx, node.raw["spec"], (*node.path, "spec"))
    given = spec.take(_BOUNDS)
    if "maxReplicas" not in given:
        raise refuse(spec.where("maxReplicas"), None, "given: Kubernetes requires it")
    spec.know("behavior", "metrics")
    behavior = k8s.read_behavior(spec.child("behavior"))
    metrics = [m for _, m in _metrics(spec, pool)]
    if not metrics:
        why = [node.ctx.reasons[p] for p in node.ctx.reasons if p[: len(spec.path) + 1] == (*spec.path, "metrics")]
        raise InputError(
            f"{spec.where('metrics')} has no metric that fluidq has: {'; '.join(why) or 'the list is empty'}."
        )
    one, *more = metrics
    with spec.at():
        return HPATarget(
            one.metric, one.target, one.target_type, one.type, more=tuple(more), behavior=behavior, **given
        )


def _metrics(spec: Node, pool: str) -> list[tuple[Node, HPAMetric]]:
    """Each metric that fluidq has, with the mapping of its source; the others get a reason."""
    out = []
    for entry in spec.children("metrics"):
        kind = entry.raw.get("type")
        entry.know("type", "external", "pods", "object", "resource", "containerResource")
        if not isinstance(kind, str):
            raise refuse(entry.where("type"), kind, "External, Pods or Object")
        if kind not in ("External", "Pods", "Object"):
            entry.leave("", f"a metric of type {kind}, such as CPU, is not modelled: no signal of the fluid is one")
            continue
        source = entry.child(kind.lower())
        if source is None:
            raise refuse(entry.where(kind.lower()), None, f"given: the metric of type {kind}")
        metric, target = source.child("metric"), source.child("target")
        name = metric.raw.get("name") if metric else None
        if not isinstance(name, str) or metric is None:
            raise refuse(source.where("metric.name"), name, "the name of a metric")
        if target is None:
            raise refuse(source.where("target"), None, "given: type, and value or averageValue")
        source.know("describedObject")
        metric.know("selector")
        form = target.raw.get("type")
        if not isinstance(form, str) or form not in _VALUES:
            entry.leave("", f"a target of type {form} is not modelled; AverageValue and Value are")
            continue
        key = _VALUES[form]
        target.know(*_VALUES.values(), "averageUtilization")
        if not target.has(key):
            raise refuse(target.where(key), None, f"given: the target is of type {form}")
        found = resolve(name, spec.ctx.metrics, pool, form)
        if isinstance(found, str):
            entry.leave("", found)
            continue
        value = target.take({key: QUANTITY})[key]
        entry.mark("type")
        target.mark("type")
        metric.mark("name")
        metric.leave("selector", "it selects series; fluidq reads the whole pool")
        spec.ctx.notes += found.notes
        spec.ctx.extra += [Unrepresented(metric.where("name"), name, why) for why in found.unlike]
        _check_scale(value, found.scale, target.where(key), name)
        with target.at(key):
            out.append((source, HPAMetric(found.signal, value * found.scale, form, kind)))
    return out


def _check_scale(value: float, scale: float, where: str, name: str) -> None:
    """A metric in per cent with a target of at most 1 was meant as a fraction."""
    if 0 < value <= 1 and same(scale, 0.01):
        raise refuse(where, value, f"in per cent, as {name} is: write {100 * value:g} for {value:g}")


def write(ctx: Context, documents: list[Any], policy: HPA) -> None:
    """Set what differs from the documents; a pool without an object gets one."""
    nodes = k8s.objects(ctx, documents, KIND) if documents else {}
    for pool in POOLS:
        law = getattr(policy, pool)
        if law is None:
            continue
        if pool not in nodes:
            documents.append(k8s.new_object(KIND, VERSION, pool, maxReplicas=1, metrics=[]))
            nodes[pool] = Node(ctx, documents[-1], (len(documents) - 1,))
        spec = nodes[pool].raw["spec"]
        put(spec, _BOUNDS, law)
        k8s.write_behavior(spec, law.behavior)
        old = _metrics(Node(ctx, spec, (*nodes[pool].path, "spec")), pool)
        for i, metric in enumerate(law.metrics):
            if i < len(old):
                _set(ctx, *old[i], metric, pool)
            else:
                spec["metrics"] = [*(spec.get("metrics") or []), _new(metric)]


def _set(ctx: Context, source: Node, was: HPAMetric, metric: HPAMetric, pool: str) -> None:
    """Set the target; a metric of another name or source replaces the old one."""
    raw = source.raw
    if (was.metric, was.type) != (metric.metric, metric.type):
        raise InputError(
            f"{source.where()} scales on {was.metric} ({was.type}) and the policy on {metric.metric} ({metric.type}); "
            "write the policy without the document it came from."
        )
    target, value = raw["target"], concrete(metric.target)
    if was.target_type != metric.target_type:
        target.pop(_VALUES[was.target_type], None)
        target["type"] = metric.target_type
    elif same(concrete(was.target), value):
        return
    found = resolve(raw["metric"]["name"], ctx.metrics, pool, metric.target_type)
    scale = 1.0 if isinstance(found, str) else found.scale
    target[_VALUES[metric.target_type]] = QUANTITY.write(float(np.round(value / scale, 12)))


def _new(metric: HPAMetric) -> dict[str, Any]:
    target = {"type": metric.target_type, _VALUES[metric.target_type]: QUANTITY.write(concrete(metric.target))}
    source: dict[str, Any] = {"metric": {"name": name_of(metric.metric)}, "target": target}
    if metric.type == "Object":
        source["describedObject"] = {"apiVersion": "v1", "kind": "Service", "name": "fleet"}
    return {"type": metric.type, metric.type.lower(): source}
