"""Every published figure of the systems that the article names, and the page that shows them."""

import json
from dataclasses import replace

import pytest

from fluidq.systems import SYSTEMS, Checked, Report, report

NAMED = (
    "DistServe",
    "Splitwise",
    "SARATHI",
    "Bullet",
    "DuetServe",
    "CUDA green contexts",
    "DeepSeek-V3",
    "DeepEP",
    "dynamo",
    "vLLM",
    "NIXL connector",
    "SGLang",
    "Mooncake",
    "RDMA",
    "B200",
    "GLM-5.2",
    "attention-FFN split",
)
CASES = [(s, f) for s in SYSTEMS for f in s.figures]


@pytest.mark.parametrize(("system", "figure"), CASES, ids=[f"{s.name}: {f.what}" for s, f in CASES])
def test_published_figure(system, figure):
    found = Checked(system.name, figure, float(figure.ours()))
    assert found.holds, f"{found.ours} against {figure.published}"
    # The tolerance is no blanket: a figure that is off by twice as much, and by 3 % at least, fails.
    off = 1 - 2 * figure.within - 0.03
    low = figure.published * off
    assert not Checked(system.name, figure, low).holds
    if not figure.bound:
        assert not Checked(system.name, figure, figure.published * (1 + 2 * figure.within + 0.03)).holds


def test_every_system_of_the_article_is_there_with_a_call_that_exists():
    assert tuple(s.name for s in SYSTEMS) == NAMED
    import importlib

    for system in SYSTEMS:
        assert system.figures
        assert system.model
        for call in system.call.replace(",", ";").split(";"):
            words = call.strip().split()[0]
            if not words.startswith("fluidq."):
                continue
            path = words.split("(")[0].split(".")
            for depth in range(len(path), 0, -1):
                try:
                    found = importlib.import_module(".".join(path[:depth]))
                except ModuleNotFoundError:
                    continue
                for name in path[depth:]:
                    found = getattr(found, name)
                break


def test_the_known_figures_of_the_article_and_of_deepseek():
    page = {(c.system, c.figure.what): c.ours for c in report().checked}
    assert page["DeepSeek-V3", "nodes in use over a day"] == pytest.approx(226.864, abs=5e-4)
    assert page["GLM-5.2", "KV flow per prefill GPU"] == pytest.approx(5.34375)
    assert page["SGLang", "prefill rate at a TTFT of 2 s"] == pytest.approx(25_066, abs=0.5)


def test_the_page_says_what_is_off():
    page = report()
    assert page.holds
    data = json.loads(json.dumps(page.to_dict(), allow_nan=False))
    assert [s["name"] for s in data["systems"]] == list(NAMED)
    assert sum(len(s["figures"]) for s in data["systems"]) == len(CASES)
    first = page.checked[0]
    wrong = Report((replace(first, ours=2 * first.ours), *page.checked[1:]))
    assert not wrong.holds
    assert "OFF" in str(wrong)
    assert "OFF" not in str(page)
