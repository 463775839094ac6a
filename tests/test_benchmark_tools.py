"""The tools of the tuning benchmarks: searches in lockstep, traces and what is read off them."""

import math
import threading

import numpy as np
import pytest

from tests.benchmarks import peers, quality
from tests.benchmarks._lockstep import SIZES, Server, padded
from tests.benchmarks._workloads import other_draw
from tests.helpers import small_fleet, small_plant

START = np.array([0.5, 0.5, 0.5])


class Bowl:
    """Rows of a bowl with its least cost, 1, at 1 in every coordinate."""

    def __init__(self):
        self.counted = 0

    def hard(self, u, draws):
        self.counted += len(u)
        cost = 1.0 + ((np.asarray(u) - 1.0) ** 2).sum(axis=1)
        return np.stack([cost, cost, np.ones_like(cost)], axis=1)


def test_searches_in_lockstep_get_their_own_answers_in_few_calls():
    calls = []

    def answer(key, points):
        calls.append((key, len(points)))
        return {"sum": points.sum(axis=1) * (1 if key == "plus" else -1)}

    server = Server(answer)

    def search(number):
        first = server.ask("plus", np.full((number + 1, 2), float(number)))["sum"]
        if number == 2:
            return first, None
        return first, server.ask("minus" if number else "plus", np.full((1, 2), 3.0))["sum"]

    out = server.run({n: lambda n=n: search(n) for n in range(3)})
    for n in range(3):
        np.testing.assert_array_equal(out[n][0], np.full(n + 1, 2.0 * n))
    assert [out[n][1] if n == 2 else float(out[n][1][0]) for n in range(3)] == [6.0, -6.0, None]
    assert calls[0] == ("plus", 6)
    assert sorted(calls[1:]) == [("minus", 1), ("plus", 1)]


def test_an_error_reaches_the_search_that_asked_and_whoever_runs_them():
    def answer(key, points):
        raise ZeroDivisionError("no answer")

    server = Server(answer)
    seen = []

    def search():
        try:
            server.ask("any", np.zeros((1, 1)))
        except ZeroDivisionError:
            seen.append(threading.get_ident())
            raise

    with pytest.raises(ZeroDivisionError):
        server.run({"one": search, "two": search})
    assert len(seen) == 2


@pytest.mark.parametrize("count", [1, SIZES[0], SIZES[-1], SIZES[-1] + 1, 3 * SIZES[-1] + 5])
def test_blocks_are_of_a_few_sizes_and_lose_nothing(count):
    sizes = set()

    def call(points):
        sizes.add(len(points))
        return points * 2.0

    points = np.arange(2.0 * count).reshape(count, 2)
    np.testing.assert_array_equal(padded(call, points), 2.0 * points)
    assert sizes <= set(SIZES)


@pytest.mark.parametrize("name", list(peers.PEERS))
def test_every_peer_starts_at_the_start_or_around_it_and_stops_at_the_budget(name):
    pytest.importorskip({"CMA-ES": "cmaes", "Nelder-Mead": "scipy", "TPE": "optuna"}.get(name, "numpy"))
    rows = Bowl()
    budget = 60 if name == "TPE" else 200
    search = peers.PEERS[name]
    trace = peers.traced(rows, budget, lambda f: search(f, START, np.random.default_rng(0)))
    assert rows.counted == budget
    counts, costs = zip(*trace, strict=True)
    assert list(counts) == sorted(counts)
    assert list(costs) == sorted(costs, reverse=True)
    assert costs[-1] < (1.001 if name == "CMA-ES" else 1.05 if name == "Nelder-Mead" else 1.75)
    if name in ("TPE", "random"):
        assert costs[0] == pytest.approx(1.75)


def test_steps_and_generations_fit_the_budget():
    for parameters in (4, 10, 14):
        s = peers.fitted(600, parameters, peers.SETTINGS)
        spent = s.screen + (5 + s.steps * s.starts) * (1 + parameters) + s.finish * peers.POPULATION
        assert 0.9 * 600 < spent + s.steps * s.starts / s.judge_every <= 600
        assert s.steps > 1
        assert s.finish > 1
    assert peers.fitted(10, 14, peers.SETTINGS).steps == 1


def trace(*points):
    return [(int(n), float(c)) for n, c in points]


def test_closed_loops_are_counted_to_the_first_cost_that_is_close_enough():
    path = trace((1, 200), (10, 104), (50, 101), (90, 100))
    assert peers.reached(path, 101.0) == 50
    assert math.isinf(peers.reached(path, 99.0))
    assert peers.reached(path, 250.0) == 1


def cell(us, them):
    others = {name: [trace((1, 200), (400, 130))] * 3 for name in ("Nelder-Mead", "TPE", "random")}
    return peers.judged({"CMA-ES": [trace((1, 200), *them)] * 3, **others, "fluidq": [trace((1, 200), *us)] * 3})


def test_a_cell_says_who_wins_and_by_how_much():
    met = cell(us=[(10, 100)], them=[(300, 100.5)])
    assert met["verdict"] == "30.0 x"
    assert met["goal_met"]
    assert met["never_worse"]
    short = cell(us=[(100, 100)], them=[(300, 100.5)])
    assert short["verdict"] == "3.0 x"
    assert not short["goal_met"]
    lost = cell(us=[(300, 100.5)], them=[(100, 100)])
    assert lost["verdict"] == "CMA-ES wins, 3.0 x"
    assert not lost["goal_met"]
    assert not lost["never_worse"]
    never = cell(us=[(300, 110)], them=[(100, 100)])
    assert never["verdict"] == "CMA-ES wins: 3 seeds against 0"
    alone = cell(us=[(300, 100)], them=[(100, 110)])
    assert alone["verdict"] == "fluidq wins: 3 seeds against 0"
    assert alone["goal_met"]


def test_where_most_seeds_fail_the_few_that_do_not_decide():
    few = {"runs_to_1_percent": None, "found": 4}
    assert peers.verdict({**few, "found": 0}, "TPE", few) == "TPE wins: 4 seeds against 0"
    assert peers.verdict({**few, "found": 5}, "TPE", few) == "fluidq wins: 5 seeds against 4"
    assert peers.verdict(few, "TPE", few) == "nobody wins"


def test_the_table_names_the_winner():
    row = {"workload": "w", "law": "l", "parameters": 4, "seeds": 3, "budget": 600}
    text = peers.table([{**row, **cell(us=[(300, 110)], them=[(100, 100)])}])
    assert "| CMA-ES wins: 3 seeds against 0 |" in text
    assert text.count("1.000 (1.000)") == 1
    assert "met in 0 of 1 cells" in text


OUTCOMES = np.array(
    # cost, paid, attained
    [[20.0, 10.0, 0.9], [18.0, 7.0, 0.9], [11.0, 10.0, 0.95], [9.0, 6.0, 0.85], [12.0, 11.9, 1.0]]
)


def test_candidates_are_chosen_at_the_default_s_attainment_and_within_its_gpu_hours():
    assert quality.choose(OUTCOMES, attained=0.9) == 1
    assert quality.choose(OUTCOMES, paid=10.0) == 2
    assert quality.choose(OUTCOMES, attained=1.01) is None
    got = quality.against(OUTCOMES, OUTCOMES[0])
    assert got["saved"] == pytest.approx(0.3)
    assert got["loss_factor"] == pytest.approx(10.0)
    assert quality.against(OUTCOMES[:1], OUTCOMES[0])["saved"] == 0.0


def test_candidates_of_all_laws_are_judged_together():
    def pool(rows):
        return quality.Pool(None, np.zeros((len(rows), 1)), OUTCOMES[rows])

    row = {"workload": "w", "law": "a", "default": {"cost": 20.0, "gpu_hours": 10.0, "attained": 0.9}}
    pools = {("w", "a"): pool([0, 2]), ("w", "b"): pool([1, 3]), ("x", "c"): pool([4])}
    (got,) = quality.together([row], pools)
    assert (got["saved_by"], got["loss_by"]) == ("b", "a")
    assert got["saved"] == pytest.approx(0.3)


def test_another_draw_is_another_day_of_the_same_process_and_the_same_each_time():
    from fluidq.workload import default_workload

    day = default_workload(seed=0, days=0.1)
    one, again, two = (other_draw(day, k) for k in (0, 0, 1))
    np.testing.assert_array_equal(one.rate, again.rate)
    assert not np.array_equal(one.rate, two.rate)
    assert not np.array_equal(one.rate, day.rate)


def test_a_search_of_fluidq_is_traced_from_the_given_policy_on():
    """The count at each judgement is the search's own, and a trace never goes past the budget."""
    from fluidq.objective import Objective
    from fluidq.workload import default_workload
    from tests.benchmarks._workloads import Bench

    load = default_workload(seed=0).slice(8 * 3600, 9 * 3600)
    bench = Bench("small", small_fleet(small_plant(kv_capacity=1e6)), load, Objective())
    traces = peers.cell(bench, "dynamo", seeds=1, budget=90, settings={"fluidq": peers.SETTINGS}, methods={})
    ((first, *rest),) = traces["fluidq"]
    assert first[0] == 1
    assert all(count <= 90 for count, _ in rest)
