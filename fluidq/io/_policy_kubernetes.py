"""What the Kubernetes dialects share: which pool an object scales, and `behavior`."""

import re
from collections.abc import Callable
from typing import Any

from fluidq._errors import InputError, refuse
from fluidq.io._policy_node import Codec, Context, Node, concrete, differences, put
from fluidq.io._policy_values import QUANTITY, TEXT, WHOLE
from fluidq.policies.hpa import HPABehavior, HPAScalingPolicy, HPAScalingRules, default_down, default_up
from fluidq.policies.metrics import POOLS

_RULES: dict[str, Codec] = {"stabilizationWindowSeconds": WHOLE, "selectPolicy": TEXT, "tolerance": QUANTITY}
_LIMIT: dict[str, Codec] = {"type": TEXT, "value": WHOLE, "periodSeconds": WHOLE}
_DEFAULTS: dict[str, Callable[[], HPAScalingRules]] = {"scaleUp": default_up, "scaleDown": default_down}


def objects(ctx: Context, documents: list[Any], kind: str) -> dict[str, Node]:
    """The objects of this kind by the pool that they scale; other documents are left to the report.

    Raises InputError where names and labels do not tell the pool, and for two objects on one.
    """
    nodes = [Node(ctx, d, (i,)) for i, d in enumerate(documents) if isinstance(d, dict) and d.get("kind") == kind]
    if ctx.pool is not None and len(nodes) > 1:
        raise refuse("pool", ctx.pool, f"left out for a file of {len(nodes)} objects: their names must tell the pools")
    out: dict[str, Node] = {}
    for node in nodes:
        metadata = node.child("metadata")
        name = metadata.raw.get("name") if metadata else None
        spec = node.child("spec")
        if spec is None:
            raise refuse(node.where("spec"), None, f"the specification of the {kind}")
        pool = pool_of(ctx, f"{kind} {name}" if name else kind, _names(metadata, spec))
        if pool in out:
            raise InputError(
                f"{node.where()}: a second {kind} for the {pool} pool; each pool has one autoscaler, and two on one "
                "target fight."
            )
        node.mark("apiVersion", "kind")
        node.know("metadata", "spec", "status")
        if metadata is not None:
            metadata.know("annotations")
            metadata.mark(*(key for key in metadata.raw if key != "annotations"))
        spec.mark("scaleTargetRef")
        out[pool] = node
    if nodes:
        ctx.notes.append("metadata and scaleTargetRef name objects; they are kept and mean nothing to the law")
    return out


def pool_of(ctx: Context, what: str, names: list[tuple[str, str]]) -> str:
    """The pool that the names tell, the first that tells it; the pool that was asked for goes before.

    `names` are (what kind of name, the text). Raises InputError where nothing tells it.
    """
    told = None
    for source, text in names:
        hits = [pool for pool in POOLS if re.search(pool, text.lower())]
        if len(hits) == 1:
            told = (hits[0], f"{source} {text!r}")
            break
    if ctx.pool is not None:
        against = f", against {told[1]}" if told and told[0] != ctx.pool else ""
        ctx.notes.append(f"{what} scales the {ctx.pool} pool: as asked for{against}")
        return ctx.pool
    if told is None:
        raise InputError(
            f"{what} does not say which pool it scales; name it (prefill or decode) in its name, target or labels, "
            "or give pool='prefill' or pool='decode'."
        )
    ctx.notes.append(f"{what} scales the {told[0]} pool: {told[1]}")
    return told[0]


def _names(metadata: Node | None, spec: Node) -> list[tuple[str, str]]:
    """Where a pool may be told, the most telling first."""
    out: list[tuple[str, Any]] = []
    selector, target = spec.raw.get("subTargetSelector"), spec.raw.get("scaleTargetRef")
    if isinstance(selector, dict):
        out.append(("role", selector.get("roleName")))
    if isinstance(target, dict):
        out.append(("target", target.get("name")))
    if metadata is not None:
        labels = metadata.raw.get("labels")
        if isinstance(labels, dict):
            out += [(f"label {key}", value) for key, value in labels.items()]
        out.append(("name", metadata.raw.get("name")))
    out += [("metric", text) for text in _texts([spec.raw.get("metrics"), spec.raw.get("triggers")])]
    return [(kind, text) for kind, text in out if isinstance(text, str)]


def _texts(raw: Any) -> list[str]:
    if isinstance(raw, dict | list):
        return [t for each in (raw.values() if isinstance(raw, dict) else raw) for t in _texts(each)]
    return [raw] if isinstance(raw, str) else []


def read_behavior(node: Node | None) -> HPABehavior:
    """`behavior`, what is left out at Kubernetes' defaults. Raises InputError."""
    if node is None:
        return HPABehavior()
    return HPABehavior(**{side: _read_rules(node.child(side), default()) for side, default in _DEFAULTS.items()})


def _read_rules(node: Node | None, default: HPAScalingRules) -> HPAScalingRules:
    if node is None:
        return default
    given = node.take(_RULES)
    limits = []
    for each in node.children("policies"):
        found = each.take(_LIMIT)
        for name in _LIMIT:
            if name not in found:
                raise refuse(each.where(name), None, "given: Kubernetes requires it")
        with each.at():
            limits.append(HPAScalingPolicy(**found))
    if node.has("policies"):
        if not limits:
            raise refuse(node.where("policies"), [], "at least one policy, or left out for Kubernetes' defaults")
        given["policies"] = tuple(limits)
    base = {name: getattr(default, name) for name in ("stabilizationWindowSeconds", "selectPolicy", "policies")}
    with node.at():
        return HPAScalingRules(**{**base, **given})


def write_behavior(raw: dict[str, Any], behavior: HPABehavior) -> None:
    """Set `behavior` in `raw`, a mapping that holds it, where it differs from what is there or the default."""
    for side, default in _DEFAULTS.items():
        rules, usual = getattr(behavior, side), default()
        old = (raw.get("behavior") or {}).get(side)
        if old is None and not differences(rules, usual):
            continue
        new = (
            raw.setdefault("behavior", {})
            if raw.get("behavior") is not None
            else raw.update(behavior={}) or raw["behavior"]
        )
        mine = new.setdefault(side, {}) if new.get(side) is not None else new.update({side: {}}) or new[side]
        put(mine, _RULES, rules, defaults={name: concrete(getattr(usual, name)) for name in _RULES})
        listed = mine.get("policies")
        if listed is None and not differences(rules.policies, usual.policies):
            continue
        if isinstance(listed, list) and len(listed) == len(rules.policies):
            for entry, policy in zip(listed, rules.policies, strict=True):
                put(entry, _LIMIT, policy)
        elif rules.policies:
            mine["policies"] = [
                {key: codec.write(concrete(getattr(p, key))) for key, codec in _LIMIT.items()} for p in rules.policies
            ]


def new_object(kind: str, version: str, pool: str, **spec: Any) -> dict[str, Any]:
    """An object for a pool, as one writes it from nothing: its target is a Deployment of the pool's name."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": pool}, "spec": {"scaleTargetRef": target, **spec}}


def is_kind(documents: list[Any], kind: str) -> bool:
    """Whether any of the documents is of this kind."""
    return any(isinstance(d, dict) and d.get("kind") == kind for d in documents)
