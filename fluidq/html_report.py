"""The operator's report as one self-contained page: no script, no outside file, everything shown is escaped."""

import base64
import io
from html import escape
from typing import Any

import numpy as np

from fluidq import plot
from fluidq.operator_report import Report, _clock

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .25rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; } tr { border-bottom: 1px solid #ddd; }
tr.own { font-weight: 600; background: #f3f6fa; } img { max-width: 100%; } pre { overflow-x: auto; }
.lead { font-size: 1.05rem; border-left: 4px solid #0b4f8a; padding-left: 1rem; }
""".strip()


def html(report: Report) -> str:
    """The page as text."""
    case = report.case
    lost = report.minutes_lost[report.name]
    run = report.comparison.runs[report.name]
    budget = f"{report.facts.reaction:,.0f} s"
    rows = [
        ("minutes outside the limits", f"{lost:,.0f} of {case.workload.duration / 60:,.0f}"),
        ("requests within both limits", f"{100 * float(run.attained):.1f} %"),
        ("GPU-hours", f"{float(run.cost.gpu_hours):,.0f}"),
        ("short side", ", ".join(f"{side} {minutes:,.0f} min" for side, minutes in report.by_side.items())),
        ("reaction budget, detection + cold start", budget),
        ("time until the buffer is full, or empty", _times(report)),
    ]
    parts = [
        f"<h1>{escape(report.name)} on {escape(case.workload.name)}</h1>",
        f'<p class="lead">{escape(report.recommendation())}</p>',
        "<h2>What happened</h2>",
        _table(("", "value"), rows),
        _figure(plot.trajectories({report.name: report.trajectory}, case.fleet, case.objective)),
        "<p>Ready GPUs, the handoff buffer against 0 and its capacity, TTFT and TPOT against their limits, as the "
        "model replays this policy on the observed load.</p>",
        "<h2>When, and which side</h2>",
        _table(
            ("from", "to", "minutes", "short side"),
            [(_clock(s.start), _clock(s.end), f"{(s.end - s.start) / 60:.0f}", s.side) for s in report.spells[:12]],
        )
        if report.spells
        else "<p>Never outside the limits.</p>",
        "<h2>What the law can do</h2>",
        f"<pre>{escape(str(report.facts))}</pre>",
        "<h2>Other laws on the same load</h2>",
        _comparison(report),
        _figure(plot.comparison(report.comparison, case.fleet, case.objective)),
        "<h2>What was assumed</h2>",
        "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in (*report.notes, *case.notes)) + "</ul>",
    ]
    title = escape(f"fluidq: {report.name}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _times(report: Report) -> str:
    f = report.facts
    return ", ".join("never" if np.isinf(t) else f"{t:,.0f} s" for t in (f.time_to_full, f.time_to_empty))


def _comparison(report: Report) -> str:
    rows = []
    for row in report.comparison.rows():
        numbers = [f"{row[key]:,.0f}" for key in ("cost", "gpu_hours", "slo_loss")]
        numbers += [f"{report.minutes_lost[row['policy']]:,.0f}", f"{100 * row['slo_attainment']:.1f} %"]
        rows.append((row["policy"], *numbers, f"{row['actions']:,.0f}", _ratio(row["bound_ratio"])))
    parts = ("cost [GPU-h]", "GPU-hours", "SLO loss [GPU-h]")
    head = ("policy", *parts, "minutes lost", "in SLO", "actions", "cost / bound")
    return _table(head, rows, own=report.name)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _table(head: tuple[str, ...], rows: Any, own: str | None = None) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in rows:
        mark = ' class="own"' if row[0] == own else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _figure(axes: Any) -> str:
    """A picture inside the page; its words for those who do not see it are in the text below."""
    import matplotlib.pyplot as plt

    figure = axes.flat[0].figure
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    plt.close(figure)
    return f'<img alt="figure" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode("ascii")}">'
