"""The figure registry and the article's shock map: numbers, colours, words on the sheet, bytes, refusals."""

import hashlib
import json

import numpy as np
import pytest
from matplotlib.image import imread

from fluidq import figures
from fluidq._errors import InputError
from fluidq.figures._canvas import STYLE
from fluidq.figures._shock_map import colours, compute
from fluidq.formulas import buffer

GB = 1e9


def _words(figure) -> str:
    axes = figure.axes[0]
    return " ".join([axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel(), *(t.get_text() for t in axes.texts)])


def test_registry_names_its_figures_and_judges_them():
    names = figures.names()
    assert names == tuple(sorted(names))
    listing = {entry["name"]: entry for entry in figures.listing()}
    assert tuple(listing) == names
    named = {"distserve", "splitwise", "sarathi", "mooncake", "deepseek-day", "taichi", "afd-ratio", "shock-map"}
    assert named <= set(listing)
    for other in listing.values():
        assert set(other) == {"name", "source", "caption", "published", "parameters", "worst_error", "misses"}
        assert 0 <= other["worst_error"] < 0.5
        assert other["source"]
        assert other["caption"]
        assert other["published"]
        # What is far off says so.
        assert other["worst_error"] < 0.2 or other["misses"]
        json.dumps(other, allow_nan=False)
    entry = listing["shock-map"]
    assert entry["worst_error"] <= 1e-9
    assert "ShockRegimeMap" in entry["source"]
    assert entry["published"]["P"] == 5.34e9
    json.dumps(entry, allow_nan=False)


def test_default_is_the_articles_grid():
    data = compute()
    assert data.loss.shape == (30, 48)
    np.testing.assert_allclose(data.delta / GB, -5.34 + (np.arange(48) + 0.5) * 10.68 / 48)
    np.testing.assert_allclose(data.tau, (np.arange(30) + 0.5) * 60.0)
    assert (data.C, data.Q0) == (150e9, 75e9)
    assert data.worst_error <= 1e-9
    # One cell by hand: the last column is 5.22875 GB/s, the first row 30 s, the headroom 75 GB.
    assert data.loss[0, -1] == pytest.approx((5.22875 * 30 - 75) / (5.34 * 30), abs=1e-12)
    np.testing.assert_allclose(data.loss, data.loss[:, ::-1], atol=1e-12)  # half full: both sides alike


def test_worst_error_sees_a_difference(monkeypatch):
    """The judgement is a comparison, not a constant."""
    original = buffer.shock_loss
    monkeypatch.setattr(buffer, "shock_loss", lambda **kw: original(**{**kw, "C": kw["C"] * 1.01}))
    assert compute().worst_error > 1e-4


@pytest.mark.parametrize("params", [{"C": 25 * GB, "Q0": 20 * GB}, {"C": 500e9, "Q0": 0}, {"tau_max": 20, "P": 1e10}])
def test_own_parameters_agree_with_the_closed_form(params):
    built = figures.build("shock-map", **params)
    assert built["worst_error"] <= 1e-9
    assert built["capacity_bytes"] == params.get("C", 150e9)
    json.dumps(built, allow_nan=False)


def test_stock_is_half_of_the_capacity_unless_given():
    assert compute(C=40 * GB).Q0 == 20 * GB
    assert compute(C=40 * GB, Q0=0.0).Q0 == 0.0


def test_colour_law():
    loss = np.array([0.0, 0.1, 0.5, 1.0])
    for surplus in (False, True):
        rgb = colours(loss, np.full(4, surplus))
        alpha = (1 - rgb) / (1 - rgb[-1]) * 0.96
        np.testing.assert_allclose(alpha[:, 0 if surplus else 2], [0.04, 0.04 + 0.92 * 0.2**0.75, 0.96, 0.96])
        # Lightness alone orders the losses, so the map survives grey print.
        grey = rgb @ [0.299, 0.587, 0.114]
        assert (np.diff(grey)[:2] < 0).all()
        assert grey[2] == grey[3]
    down, up = colours(np.array([1.0]), np.array([False]))[0], colours(np.array([1.0]), np.array([True]))[0]
    assert down[0] > down[1] > down[2]  # orange
    assert up[2] > up[1] > up[0]  # blue


def test_the_sheet_says_what_it_shows():
    figure = figures.shock_map().figure
    assert figure is not None
    words = " ".join(_words(figure).split())
    for word in ("absorbed", "decode output lost", "prefill back-pressured", "[s]", "[GB/s per prefill GPU]", "150 GB"):
        assert word in words
    assert figure.axes[1].get_ylabel().startswith("stranded flow L")


def test_boundary_curves_are_the_hit_times():
    figure = figures.shock_map(C=150 * GB, Q0=30 * GB).figure
    assert figure is not None
    lines = figure.axes[0].get_lines()
    assert len(lines) == 2
    for line in lines:
        delta, tau = line.get_data()
        np.testing.assert_allclose(
            tau, buffer.time_to_boundary(delta=np.asarray(delta) * GB, C=150 * GB, Q0=30 * GB), rtol=1e-12
        )
        assert np.abs(delta).max() == pytest.approx(5.34)
        assert np.max(tau) == pytest.approx(1800)


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_the_same_data_give_the_same_bytes(tmp_path, kind):
    digests = set()
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{kind}"
        figures.build("shock-map", path)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1
    assert b"CreationDate" not in path.read_bytes()


def test_the_picture_has_both_colours(tmp_path):
    figures.build("shock-map", tmp_path / "map.png")
    pixels = imread(tmp_path / "map.png")[..., :3]
    for surplus in (False, True):
        hue = colours(np.array([1.0]), np.array([surplus]))[0]
        assert (np.abs(pixels - hue).max(axis=-1) < 0.01).mean() > 0.1


def test_style_is_one_file_that_leaves_no_trace():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    figures.shock_map()
    assert dict(mpl.rcParams) == before
    assert STYLE.exists()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"C": 100e9, "Q0": 101e9}, ("Q0 is 101000000000.0", "0 to the capacity C, 1e+11 B")),
        ({"C": 0.0}, ("C is 0.0",)),
        ({"P": -1.0}, ("P is -1.0",)),
        ({"tau_max": 0.0}, ("tau_max is 0.0",)),
        ({"tau_max": float("nan")}, ("tau_max is nan",)),
        ({"rows": 0}, ("rows is 0",)),
        ({"capacty": 1.0}, ("unknown parameter of the figure shock-map 'capacty'",)),
    ],
)
def test_bad_parameters_are_refused(params, words):
    with pytest.raises(InputError) as caught:
        figures.build("shock-map", **params)
    for word in words:
        assert word in str(caught.value)


def test_bad_names_and_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="unknown figure 'shockmap'; did you mean 'shock-map'"):
        figures.build("shockmap")
    with pytest.raises(InputError, match=r"ends in \.png, \.pdf, \.svg"):
        figures.build("shock-map", tmp_path / "map.xyz")
    with pytest.raises(InputError, match="cannot be written"):
        figures.build("shock-map", tmp_path / "nowhere" / "map.png")
