"""Text with units to SI: exact values, bits and bytes kept apart, and one clear sentence for everything else."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidq import units
from fluidq._errors import InputError
from fluidq.units import format, parse, si

EXACT = [
    ("400Gbps", "bytes/s", 50e9),
    ("400 Gbit/s", "bytes/s", 50e9),
    ("400Gb/s", "bytes/s", 50e9),
    ("50GB/s", "bytes/s", 50e9),
    ("50GBps", "bytes/s", 50e9),
    ("5.34GB/s", "bytes/s", 5.34e9),
    ("5.34 GB / s", "bytes/s", 5.34e9),
    ("5.34GB/s/GPU", "bytes/s", 5.34e9),
    ("-2.67GB/s", "bytes/s", -2.67e9),
    ("1GiB/s", "bytes/s", 2.0**30),
    ("150GB", "bytes", 150e9),
    ("150 GB", "bytes", 150e9),
    ("1GiB", "bytes", 2.0**30),
    ("1KiB", "bytes", 1024.0),
    ("1kB", "bytes", 1000.0),
    ("1KB", "bytes", 1000.0),
    ("8Gb", "bytes", 1e9),
    ("8Gbit", "bytes", 1e9),
    ("3 bytes", "bytes", 3.0),
    ("0", "bytes", 0.0),
    ("95kB", "bytes/token", 95e3),
    ("95KB", "bytes/token", 95e3),
    ("95kB/token", "bytes/token", 95e3),
    ("94720 B/tok", "bytes/token", 94720.0),
    ("88s", "seconds", 88.0),
    ("88", "seconds", 88.0),
    ("2min", "seconds", 120.0),
    ("50ms", "seconds", 0.05),
    ("1.5h", "seconds", 5400.0),
    ("1e-3s", "seconds", 1e-3),
    ("7.9ns", "seconds", 7.9e-9),
    ("8192", "tokens", 8192.0),
    ("8ktok", "tokens", 8000.0),
    ("13114 tok/s", "tokens/s", 13114.0),
    ("13114tok/s/GPU", "tokens/s", 13114.0),
    ("120 req per min", "requests/s", 2.0),
    ("4.5PFLOP/s", "flop/s", 4.5e15),
    ("4.5 PFLOPS", "flop/s", 4.5e15),
    ("64GPUs", "gpus", 64.0),
    ("600 GPU*min", "gpu_hours", 10.0),
    ("12 GPU-hours", "gpu_hours", 12.0),
    ("50%", "1", 0.5),
    ("0.5", "1", 0.5),
]


@pytest.mark.parametrize(("text", "dimension", "value"), EXACT)
def test_exact(text: str, dimension: str, value: float):
    assert parse(text, dimension, "field") == value  # to the last bit


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("400", "bytes/s", r"nic is '400'.*write 400Gbps or 50GB/s\."),
        ("5340000000", "bytes/s", r"write 5\.34GB/s or 42\.72Gbps\."),
        ("150", "bytes", r"nic is '150'.*write 150GB or 18\.75GB \(if it was Gb\)\."),
        ("150e9", "bytes", r"write 150GB or 1200Gb\."),
        ("95", "bytes/token", r"write 95kB\."),
        ("95000", "bytes/token", r"write 95kB\."),
        ("5gb", "bytes", "GB or Gb"),
        ("400G", "bytes/s", "GB/s or Gbps or Gb/s"),
        ("5GBs", "bytes/s", r"unknown unit in nic = '5GBs': 'GBs'; did you mean 'GB/s'\?"),
        ("5sek", "seconds", r"unknown unit .*'sek'; did you mean 's'\?"),
        ("5furlong", "seconds", "unknown unit .*'furlong'; Known: d, h, min"),
        ("5.34GB", "bytes/s", "'GB' is the unit of a size"),
        ("5.34GB/s", "bytes", "'GB/s' is the unit of a data rate"),
        ("88s", "tokens", "'s' is the unit of a time"),
        ("5GB/s/s", "bytes/s", "the unit of something else"),
        ("5,34GB/s", "bytes/s", "a data rate such as 50GB/s or 400Gbps"),
        ("", "seconds", "a time such as 88s or 1.5h"),
        ("GB", "bytes", "a size such as 150GB"),
        ("5 s**2", "seconds", "a time such as"),
        ("5 ()", "seconds", "a time such as"),
        ("1" * 65, "seconds", "a time such as"),
        ("nan", "seconds", "a time such as"),
        ("inf", "seconds", "a time such as"),
        ("1e999s", "seconds", "a finite number"),
        ("1e300EB", "bytes", "a finite number"),
    ],
)
def test_refused(text: str, dimension: str, message: str):
    with pytest.raises(InputError, match=message):
        parse(text, dimension, "nic")


def test_bare_numbers_of_any_type_are_refused_where_bits_could_be_meant():
    for value in (400, 400.0, np.float64(400), np.array(400.0)):
        with pytest.raises(InputError, match="write 400Gbps or 50GB/s"):
            parse(value, "bytes/s", "nic")
        assert parse(value, "seconds", "tau") == 400.0
    for value in (math.nan, math.inf):
        with pytest.raises(InputError):
            parse(value, "seconds", "tau")


def test_minimum_and_above():
    assert parse("0s", "seconds", "tau", minimum=0.0) == 0.0
    with pytest.raises(InputError, match=r"tau is '-3s'; it must be a time >= 0 s\."):
        parse("-3s", "seconds", "tau", minimum=0.0)
    with pytest.raises(InputError, match=r"P is '0GB/s'; it must be a data rate > 0 B/s\."):
        parse("0GB/s", "bytes/s", "P", above=0.0)
    with pytest.raises(InputError, match=r"tau is '5s'; it must be a time >= 10 s\."):
        parse("5s", "seconds", "tau", minimum=10.0)


def test_python_numbers_are_si_and_text_is_parsed():
    assert si(5.34e9, "bytes/s", "flow") == si("5.34GB/s", "bytes/s", "flow")
    assert si(math.inf, "bytes/s", "fabric", above=0.0) == math.inf
    with pytest.raises(InputError, match="not NaN"):
        si(math.nan, "bytes/s", "flow")
    with pytest.raises(InputError, match="400Gbps"):
        si("400", "bytes/s", "nic")


def test_extreme_exponents_end_at_once():
    assert parse("1e-999999999s", "seconds", "tau") == 0.0
    with pytest.raises(InputError):
        parse("1e999999999s", "seconds", "tau")


@pytest.mark.parametrize("dimension", units.DIMENSIONS)
def test_every_suggested_unit_and_example_parses(dimension: str):
    kind = units.DIMENSIONS[dimension]
    for unit in kind.units:
        assert parse(f"1 {unit}", dimension, "field") > 0
    for example in kind.example.split(" or "):
        assert parse(example, dimension, "field") > 0


def test_unknown_dimension():
    with pytest.raises(InputError, match=r"unknown dimension 'byte/s'; did you mean 'bytes/s'\?"):
        parse("1", "byte/s", "field")


@given(st.decimals(0, 10**6, places=3), st.sampled_from(["B", "kB", "MB", "GB", "KiB", "GiB"]))
def test_bits_are_an_eighth_of_bytes(number, unit: str):
    bits = parse(f"{number}{unit.replace('B', 'b')}", "bytes", "x")
    assert 8 * bits == parse(f"{number}{unit}", "bytes", "x")


def outcome(text: str, dimension: str) -> str | float:
    """The value, or the message of the refusal; any other exception is a failure of the test."""
    try:
        return parse(text, dimension, "thefield")
    except InputError as error:
        return str(error)


UNIT_LIKE = r"[0-9]{1,3}(\.[0-9])?(e[0-9])? ?[kKMGTPEmunid]{0,2}[A-Za-z]{0,6}([/*][A-Za-z]{1,5}){0,2}"


@given(st.text(max_size=20) | st.from_regex(UNIT_LIKE, fullmatch=True), st.sampled_from(list(units.DIMENSIONS)))
def test_any_text_is_a_finite_number_or_one_sentence_that_names_the_field(text: str, dimension: str):
    result = outcome(text, dimension)
    assert "thefield" in result if isinstance(result, str) else math.isfinite(result)


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (150e9, "bytes", "150 GB"),
        (999.96e9, "bytes", "1 TB"),
        (0, "bytes", "0 B"),
        (5.34375e9, "bytes/s", "5.34 GB/s"),
        (-2.67e9, "bytes/s", "-2.67 GB/s"),
        (math.inf, "bytes/s", "inf B/s"),
        (math.nan, "bytes", "nan B"),
        (95e3, "bytes/token", "95 kB/token"),
        (4.5e15, "flop/s", "4.5 PFLOP/s"),
        (56250, "tokens/s", "56,250 tok/s"),
        (0.0303, "seconds", "30.3 ms"),
        (14.04, "seconds", "14 s"),
        (695, "seconds", "695 s"),
        (9000, "seconds", "2.5 h"),
        (0, "seconds", "0 s"),
        (math.inf, "seconds", "inf s"),
        (9.357, "1", "9.36"),
    ],
)
def test_format(value: float, dimension: str, text: str):
    assert format(value, dimension) == text


@given(st.floats(1e-3, 1e8), st.sampled_from(["bytes", "bytes/s", "seconds", "flop/s"]))
def test_what_is_printed_reads_back(value: float, dimension: str):
    assert parse(format(value, dimension, digits=6), dimension, "x") == pytest.approx(value, rel=1e-5)
