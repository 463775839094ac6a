"""KV bytes per token, counted from the architecture, over the models of the catalogue (D12, D32)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fluidq import catalog
from fluidq.figures._overlay import VALUE, Mark, Reproduced, dot, keys, of_system, source, table, ticks
from fluidq.formulas import capacity
from fluidq.kv import Latent, kv_bytes

SOURCE = "the article (GLM-5.2), arXiv 2401.09670 (OPT-66B), the article's author (draft table); D12, D32"
CAPTION = (
    "A latent cache (MLA) keeps 35 to 95 kB per token where full attention of its time keeps megabytes: the fabric and "
    "the buffer of the article are sized by this number alone."
)
SIZE = (7.6, 5.0)
KINDS = {"MHA": ("C5", "xx"), "GQA": ("C1", "//"), "MLA": ("C0", ""), "windows or states": ("C4", "..")}


def compute() -> Reproduced:
    """Counted bytes of every model in bf16, and the published values of five."""
    models = [m for m in catalog.models().values() if m.architecture is not None]
    bars = sorted(((m.name, _counted(m.architecture), _kind(m.architecture)) for m in models), key=lambda bar: -bar[1])
    (article,) = of_system("GLM-5.2", "KV per token")
    (opt,) = of_system("DistServe", "KV of 512 tokens")
    marks = [article, opt, *(_draft(entry) for entry in table()["kv"]["draft"])]
    curves = {"models": [b[0] for b in bars], "bytes": np.array([b[1] for b in bars]), "kinds": [b[2] for b in bars]}
    return Reproduced(CAPTION, tuple(marks), curves, {"largest": bars[0][1], "smallest": bars[-1][1]})


def _counted(architecture: Any) -> float:
    return float(np.asarray(kv_bytes(architecture, "bf16").used))


def _kind(architecture: Any) -> str:
    layers = architecture.attention
    if any(isinstance(layer, Latent) for layer in layers):
        return "MLA"
    heads = [layer for layer in layers if hasattr(layer, "kv_heads")]
    if len(heads) != len(layers) or any(layer.window for layer in heads):
        return "windows or states"
    return "MHA" if all(layer.kv_heads == layer.heads for layer in heads) else "GQA"


def _draft(entry: dict[str, Any]) -> Mark:
    """A latent without index keys, in the draft's number type."""
    found = catalog.model(entry["model"]).architecture
    assert found is not None
    (layer,) = (layer for layer in found.attention if isinstance(layer, Latent))
    ours = capacity.latent_kv_bytes(
        number_bytes=1.0 if entry["dtype"] == "fp8" else 2.0,
        latent_layers=float(layer.layers),
        latent_width=float(layer.rank + layer.rope_dim),
        index_layers=0.0,
        index_width=0.0,
    )
    words = f"KV per token, {entry['words']}"
    return Mark(words, "B", entry["value"], float(ours), entry["within"], source("draft"), kind=VALUE)


def paint(figure: Figure, data: Reproduced) -> None:
    """Bars by model, hatched by kind of attention; published values beside them."""
    axes = figure.subplots()
    names, counted, kinds = data.curves["models"], data.curves["bytes"], data.curves["kinds"]
    for row, (size, kind) in enumerate(zip(counted, kinds, strict=True)):
        colour, hatch = KINDS[kind]
        axes.barh(row, size / 1e3, color=colour, hatch=hatch, edgecolor="white", height=0.72, lw=0)
        axes.text(size / 1e3 * 1.08, row, f"{size / 1e3:,.0f}", va="center", fontsize=7)
    places = {"KV per token, bf16, counted": "GLM-5.2", "KV of 512 tokens of OPT-66B": "OPT-66B"}
    places |= {f"KV per token, {entry['words']}": entry["model"] for entry in table()["kv"]["draft"]}
    for mark in data.marks:
        # 512 tokens in GiB, printed as GB.
        size = mark.published * 2**30 / 512 if mark.what.startswith("KV of 512") else mark.published
        row = names.index(places[mark.what])
        axes.plot([size / 1e3], [row], **dot(mark), zorder=5)
        if "fp8" in mark.what:
            axes.annotate(
                "fp8", (size / 1e3, row), (5, 0), textcoords="offset points", va="center", color="white", fontsize=7
            )
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelsize=7.5)
    axes.set_ylim(len(names) - 0.3, -0.7)
    axes.set_xscale("log")
    axes.set_xlim(10, 2e4)
    ticks(axes.xaxis, (10, 30, 100, 300, 1000, 3000, 10_000))
    axes.set_xlabel("KV cache in bf16  [kB per token]")
    patches = [Patch(facecolor=c, hatch=h, edgecolor="white", label=k) for k, (c, h) in KINDS.items() if k in kinds]
    axes.legend(handles=[*patches, *keys(data.marks, "")], loc="lower right")
