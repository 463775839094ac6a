"""The operator's report: minutes lost, the short side, other laws beside it; the page escapes what it shows."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from fluidq.cli import main
from fluidq.html_report import html
from fluidq.operator_report import _sides, _spells, operator_report
from fluidq.policies import Thresholds
from fluidq.scenario import build_case
from fluidq.simulate import simulate
from fluidq.tune import Settings

BUSY = {"workload": {"days": 0.1, "load_share": 0.5}, "fleet": {"gpus": 64}}


@pytest.fixture(scope="module")
def case():
    return build_case(BUSY)


@pytest.fixture(scope="module")
def report(case):
    settings = Settings(steps=2, starts=2, realisations=0, unseen=1)
    return operator_report(case, case.policy, "<b>mine</b>", tuning=settings, notes=("a & b",), progress=False)


def test_minutes_lost_are_those_of_the_replay(case, report):
    t = simulate(case.fleet, case.workload, case.policy, case.objective).trajectory
    late = (np.asarray(t.ttft) > 2.0) | (np.asarray(t.tpot) > 0.05)
    assert 0 < late.sum()
    assert report.minutes_lost[report.name] == pytest.approx(late.sum() * 0.25)
    assert sum(report.by_side.values()) == pytest.approx(report.minutes_lost[report.name])
    assert sum(s.end - s.start for s in report.spells) == pytest.approx(late.sum() * 15.0)


def test_three_other_laws_and_the_tuned_thresholds_stand_beside_it(report):
    runs = set(report.comparison.runs)
    assert len(runs) == 5
    assert {report.name, "thresholds, tuned"} < runs
    text = report.recommendation()
    assert report.facts.binds in text
    assert "ratio = " in text or "no better thresholds" in text


def test_spells_are_stretches_with_the_side_of_their_majority():
    late = np.array([0, 1, 1, 1, 0, 0, 1, 0], dtype=bool)
    sides = np.array(["prefill", "decode", "decode", "prefill", "decode", "decode", "prefill", "decode"])
    assert _spells(late, sides, 15.0) == ((15.0, 60.0, "decode"), (90.0, 105.0, "prefill"))
    assert _spells(np.zeros(3, dtype=bool), sides[:3], 15.0) == ()


def test_decode_is_short_where_a_stock_waits_for_it(case):
    """With too few decode GPUs the buffer fills; with too few prefill GPUs it stays empty."""
    for ratio, side in ((0.9, "decode"), (0.15, "prefill")):
        still = Thresholds(1e6, 0.0, 1e6, 0.0, ratio)
        t = simulate(case.fleet, case.workload, still, case.objective).trajectory
        late = np.asarray(t.ttft) > 2.0
        assert late.mean() > 0.3
        assert np.mean(_sides(t, case)[late] == side) > 0.9


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.outside = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [v for k, v in attrs if k in ("src", "href") and not v.startswith("data:image/png;base64,")]


def test_the_page_is_whole_self_contained_and_escaped(report):
    page = html(report)
    tags = _Tags()
    tags.feed(page)
    assert tags.outside == []
    assert "script" not in tags.tags
    assert "b" not in tags.tags, "a name is text, not markup"
    assert tags.tags.count("img") == 2
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert "a &amp; b" in page
    assert page.rstrip().endswith("</html>")


def test_the_command_writes_page_and_json(tmp_path, capsys):
    scenario = tmp_path / "s.toml"
    scenario.write_text("[workload]\ndays = 0.05\n[fleet]\ngpus = 64\n")
    out = tmp_path / "out"
    code = main(
        ["report", "--policy", "balance", "--no-tune", "--scenario", str(scenario), "--out", str(out), "--json"]
    )
    data = json.loads(capsys.readouterr().out)
    assert code == (0 if data["comparison"]["policies"][0]["policy"] == "balance" else 1)
    assert json.loads((out / "report.json").read_text()) == data
    assert "<html" in (out / "report.html").read_text()
    assert main(["report", "--policy", "dynamoo"]) == 2
    assert "did you mean 'dynamo'" in capsys.readouterr().err
    assert main(["report", "--prometheus", "x.json", "--trace", "y.csv"]) == 2
