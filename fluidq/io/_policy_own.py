"""Laws that no product has a file for, as TOML: `law = "balance"` and the law's fields."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from fluidq._errors import refuse, unknown
from fluidq.io._policy_node import Context, Node, concrete, put
from fluidq.io._policy_values import NUMBER
from fluidq.policies.balance import BalanceTracking
from fluidq.policies.heteroscale import HeteroScale
from fluidq.policies.static_ratio import StaticRatio
from fluidq.policies.thresholds import Thresholds

NAME = "own"
LAWS: dict[str, Callable[..., Any]] = {
    "balance": BalanceTracking,
    "thresholds": Thresholds,
    "heteroscale": HeteroScale,
    "static": StaticRatio,
}
LAW = tuple(LAWS.values())


def detect(documents: list[Any]) -> bool:
    """By its `law`, or by fields of thresholds or balance tracking."""
    return len(documents) == 1 and isinstance(documents[0], dict) and "law" in documents[0]


def read(ctx: Context, documents: list[Any]) -> Any:
    """The law. Raises InputError for an unknown law or field, each with the nearest known one."""
    node = Node(ctx, documents[0], (0,))
    name = node.raw["law"]
    if not isinstance(name, str) or name not in LAWS:
        raise unknown("law", str(name), LAWS)
    node.mark("law")
    table = {f.name: NUMBER for f in fields(LAWS[name])}  # type: ignore[arg-type]
    for key in node.raw:
        if key != "law" and key not in table:
            raise unknown(f"field of the law {name!r}", key, table)
    given = {key: value for key, value in node.take(table).items()}
    for key in ("ratio", "utilisation"):
        if 1 < given.get(key, 0.0) <= 100:
            raise refuse(key, given[key], f"a share: write {given[key] / 100:g} for {given[key]:g} %")
    return LAWS[name](**given)


def write(ctx: Context, documents: list[Any], policy: Any) -> None:
    """The name and every field that is set; in a document from a file, what differs."""
    name = next(key for key, law in LAWS.items() if type(policy) is law)
    if not documents:
        own = {f.name: concrete(getattr(policy, f.name)) for f in fields(type(policy))}
        documents.append({"law": name, **{k: NUMBER.write(v) for k, v in own.items() if v is not None}})
        return
    put(documents[0], {f.name: NUMBER for f in fields(type(policy))}, policy)
