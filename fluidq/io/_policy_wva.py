"""llm-d's Workload Variant Autoscaler: the config map `saturation-scaling-config`, or one of its entries alone."""

from typing import Any

from fluidq._errors import InputError, refuse
from fluidq.io._policy_node import Codec, Context, Node, Unrepresented, nearest, put
from fluidq.io._policy_text import dump, parse_yaml
from fluidq.io._policy_values import DURATION, NUMBER
from fluidq.policies.wva import WVASaturationV1, WVATokenCapacityV2

NAME, LAW = "wva", (WVASaturationV1, WVATokenCapacityV2)

_BOTH: dict[str, Codec] = {"kvCacheThreshold": NUMBER, "queueLengthThreshold": NUMBER}
_V1: dict[str, Codec] = {**_BOTH, "kvSpareTrigger": NUMBER, "queueSpareTrigger": NUMBER}
_V2: dict[str, Codec] = {**_BOTH, "scaleUpThreshold": NUMBER, "scaleDownBoundary": NUMBER}
_OTHERS = (
    "analyzerName analyzers enableLimiter priority model_id modelID namespace enableScaleToZero retentionPeriod".split()
)
_INTERVAL: dict[str, Codec] = {"GLOBAL_OPT_INTERVAL": DURATION}
_MAP = "saturation-scaling-config"


def detect(documents: list[Any]) -> bool:
    """A config map of that name or with such an entry, or the fields themselves."""
    return any(_is_map(d) or _is_entry(d) for d in documents)


def _is_entry(raw: Any) -> bool:
    return isinstance(raw, dict) and "kind" not in raw and bool({**_V1, **_V2}.keys() & raw.keys())


def _is_map(raw: Any) -> bool:
    if not isinstance(raw, dict) or raw.get("kind") != "ConfigMap":
        return False
    metadata, data = raw.get("metadata"), raw.get("data")
    named = isinstance(metadata, dict) and str(metadata.get("name", "")).endswith("-scaling-config")
    texts = data.values() if isinstance(data, dict) else ()
    return named or any(isinstance(t, str) and ("kvCacheThreshold" in t or "kvSpareTrigger" in t) for t in texts)


def _entry(ctx: Context, documents: list[Any]) -> tuple[Node, Node | None, str]:
    """The entry that is read, as a mapping; the `data` that holds it as text, and under which key."""
    for i, raw in enumerate(documents):
        if _is_entry(raw):
            return Node(ctx, raw, (i,)), None, ""
        if _is_map(raw):
            node = Node(ctx, raw, (i,))
            node.mark("apiVersion", "kind", "metadata")
            data = node.child("data")
            if data is None:
                raise refuse(node.where("data"), None, "entries, of which `default` is read")
            names = [key for key, text in data.raw.items() if isinstance(text, str) and ":" in text]
            name = "default" if "default" in data.raw else names[0] if len(names) == 1 else None
            if name is None:
                raise refuse(node.where("data"), sorted(data.raw), "entries, of which one is `default`")
            text = data.raw[name]
            if not isinstance(text, str):
                raise refuse(data.where(name), text, "a text in YAML, after `|`")
            data.know(*data.raw, *_INTERVAL)
            for other in names:
                if other != name:
                    data.leave(other, "an override for one model; fluidq has one model, and reads `default`")
            return Node(ctx, parse_yaml(data.where(name), text), (i, "data", name)), data, name
    raise InputError("no config map of the autoscaler is in the file.")


def read(ctx: Context, documents: list[Any]) -> WVASaturationV1 | WVATokenCapacityV2:
    """The law of the default entry: V2 where an analyzer or one of V2's thresholds is named. Raises InputError."""
    node, data, name = _entry(ctx, documents)
    second = bool({"analyzerName", "analyzers", "scaleUpThreshold", "scaleDownBoundary"} & node.raw.keys())
    node.know(*_V1, *_V2, *_OTHERS)
    given = node.take(_V2 if second else _V1)
    given |= (data or node).take(_INTERVAL)
    if node.raw.get("analyzerName") == "saturation":
        node.mark("analyzerName")
    if second:
        for key in ("kvSpareTrigger", "queueSpareTrigger"):
            node.leave(key, "a trigger of V1; the entry names V2's analyzer, which has none")
    if data is not None:  # the entry's own fields are reported at their place inside the text
        _report_inside(ctx, node, data, name)
    words = "V2, token capacity" if second else "V1, saturation"
    ctx.notes.append(f"{words}; it scales both pools, through the HPA of llm-d's chart (not part of this file)")
    with node.at():
        return WVATokenCapacityV2(**given) if second else WVASaturationV1(**given)


def _report_inside(ctx: Context, node: Node, data: Node, name: str) -> None:
    """The text is one value of the document: what is in it and not taken is reported from here."""
    for key, value in node.raw.items():
        path = (*node.path, key)
        if path not in ctx.taken and value is not None:
            reason = ctx.reasons.get(path) or nearest(key, ctx.known[node.path])
            ctx.extra.append(Unrepresented(node.where(key), value, reason))
    data.mark(name)


def write(ctx: Context, documents: list[Any], policy: WVASaturationV1 | WVATokenCapacityV2) -> None:
    """Set what differs from the entry or from the product's defaults."""
    second = isinstance(policy, WVATokenCapacityV2)
    if not documents:
        text = "analyzerName: saturation\n" if second else "kvCacheThreshold: 0.8\n"
        metadata = {"name": _MAP}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"default": text}})
    node, data, name = _entry(ctx, documents)
    before = dict(node.raw)
    put(node.raw, _V2 if second else _V1, policy)
    put((data or node).raw, _INTERVAL, policy)
    if data is not None and before != node.raw:
        data.raw[name] = dump("yaml", [node.raw])
