"""Readers of traces: published counts reproduced, and every broken file ends in a reason or in one clear sentence."""

import gzip
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from fluidq._errors import InputError
from fluidq.io import ReadReport, read_trace
from fluidq.workload import Workload

DATA = Path(__file__).parents[1].parent / "shared" / "data"
CONV = "azure-llm-2023/AzureLLMInferenceTrace_conv.csv"
CODE = "azure-llm-2023/AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl.gz"

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = [f"2023-11-16 18:15:{s:02d}.6805900,{100 + s},{10 + s}" for s in range(40)]


def data(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the trace {name} is not beside the project")
    return path


def azure(rows: list[str], end: str = "\r\n") -> bytes:
    return end.join([HEADER, *rows]).encode()


def record(ms: object = 0, isl: object = 600, osl: object = 5, ids: object = (0, 1)) -> dict:
    ids = list(ids) if isinstance(ids, tuple) else ids
    return {"timestamp": ms, "input_length": isl, "output_length": osl, "hash_ids": ids}


def mooncake(rows: list) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


@pytest.fixture
def put(tmp_path):
    def write(content: bytes, name: str = "trace.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


# Published traces


@pytest.mark.parametrize("window", [15.0, 1.0, 49.0, 60.0, 4000.0])
@pytest.mark.parametrize(
    ("name", "kept", "isl", "osl", "span", "hit"),
    [
        (CONV, 19_366, 1154.70, 211.13, 3501.72, 0.0),
        (CODE, 8_819, 2047.85, 27.88, 3435.95, 0.0),
        (MOONCAKE, 12_031, 12_035.06, 342.62, 3537.0, 0.374),
        ("mooncake/synthetic_trace.jsonl.gz", 3_993, 15_325.48, 149.12, 1022.0, 0.651),
        ("mooncake/mooncake_trace_1000.jsonl.gz", 1_000, 9_792.03, 199.08, 177.1, 0.391),
    ],
)
def test_published_counts_and_means(name, kept, isl, osl, span, hit, window):
    workload, report = read_trace(data(name), window)
    assert (report.kept, report.dropped, report.reasons) == (kept, 0, [])
    assert workload.requests == kept
    assert workload.mean_isl == pytest.approx(isl, abs=0.005)
    assert workload.mean_osl == pytest.approx(osl, abs=0.005)
    assert report.span == pytest.approx(span, abs=0.05)
    assert workload.hit == pytest.approx(hit, abs=0.0005)
    assert span <= workload.duration < span + window + 3.2  # the arrivals of the last tick are spread over it
    assert workload.name == Path(name).name
    # The published mean times the count is a whole number of tokens: each is there.
    total = math.fsum(workload.rate * workload.window * workload.isl_stored)
    assert total == pytest.approx(round(total), rel=1e-13)


def test_formats_are_told_from_content(put):
    _, csv = read_trace(data(CODE))
    _, lines = read_trace(data(MOONCAKE))
    assert (csv.format, lines.format) == ("Azure LLM CSV", "Mooncake JSONL")
    renamed, report = read_trace(put(data(MOONCAKE).read_bytes(), "trace.csv"))
    assert (report.format, renamed.requests) == ("Mooncake JSONL", 12_031)
    zipped, report = read_trace(put(gzip.compress(data(CODE).read_bytes()), "code.jsonl"))
    assert (report.format, zipped.requests) == ("Azure LLM CSV", 8_819)


def test_burstiness_of_the_published_conversation_trace():
    """Index of dispersion of whole minutes: 16.1; azure-2023 code: 164 (partial last minute left out)."""
    for name, expected in ((CONV, 16.1), (CODE, 164)):
        counts = read_trace(data(name), 60.0)[0].rate[:-1] * 60
        assert counts.var(ddof=1) / counts.mean() == pytest.approx(expected, rel=0.03)


def test_ticks_are_spread():
    spread, report = read_trace(data(MOONCAKE), 1.0)
    raw, plain = read_trace(data(MOONCAKE), 1.0, spread=False)
    assert spread.requests == raw.requests == 12_031
    assert (raw.rate == 0).mean() > 0.6  # two of three seconds are empty
    assert (spread.rate == 0).mean() < 0.1
    assert any("10,851 rows shared a time stamp" in note for note in report.notes)
    assert plain.notes == []


def test_a_bootstrap_of_the_published_trace_keeps_its_statistics():
    original, _ = read_trace(data(CONV))
    drawn = [original.reseeded(seed) for seed in range(100)]
    assert np.mean([w.requests for w in drawn]) == pytest.approx(original.requests, rel=0.005)
    assert np.mean([w.mean_isl for w in drawn]) == pytest.approx(original.mean_isl, rel=0.005)
    assert np.mean([w.rate.std() for w in drawn]) == pytest.approx(original.rate.std(), rel=0.05)
    mix = np.log(original.isl_stored / original.osl)
    level = [np.corrcoef(mix, np.log(w.isl_stored / w.osl))[0, 1] for w in drawn]
    assert 0.4 < np.mean(level) < 0.9  # the same slow level, other residuals


def test_200_000_rows_in_about_a_second(put):
    rows = [f"2023-11-16 {h:02d}:{m:02d}:{s:02d}.{f}000000,374,44" for h in range(6) for m in range(60)
            for s in range(60) for f in range(10)][:200_000]  # fmt: skip
    path = put(azure(rows))
    start = time.process_time()
    workload, _ = read_trace(path)
    assert workload.requests == 200_000
    assert time.process_time() - start < 8.0  # 0.7 s without the tests' type checks, 2.5 s with them


# What is tolerated


@pytest.mark.parametrize(
    "content",
    [
        azure(ROWS),
        azure(ROWS) + b"\r\n",
        azure(ROWS, "\n"),
        azure(ROWS, "\r"),
        b"\xef\xbb\xbf" + azure(ROWS),
        azure(["", *ROWS, "", "   "]),
        b"\r\n\r\n" + azure(ROWS),
        azure([f" {row.replace(',', ' , ')} " for row in ROWS]),
        azure(['"' + row.replace(",", '","') + '"' for row in ROWS]),
        azure([row.replace(" ", "T").replace("5900", "5900Z") for row in ROWS]),
        azure([row.replace("5900", "5900+00:00") for row in ROWS]),
        azure([row.replace("5900", "5900" + ("+0530", "+05:30")[i % 2]) for i, row in enumerate(ROWS)]),
        azure(
            [row.replace("18:15", "13:15").replace("5900", "5900-05:00") if i else row for i, row in enumerate(ROWS)]
        ),
        azure([row.replace("5900", "590099") for row in ROWS]),
        azure([row.replace("2023-11-16", "2024-02-29") for row in ROWS]),
        azure([row + ".0" for row in ROWS]),
        b"model,generatedtokens,timestamp,contexttokens\n"
        + "\n".join("m,{2},{0},{1}".format(*row.split(",")) for row in ROWS).encode(),
        gzip.compress(azure(ROWS)),
    ],
)
def test_spellings_of_the_same_rows_read_the_same(put, content):
    expected, _ = read_trace(put(azure(ROWS), "expected"))
    workload, report = read_trace(put(content))
    assert (report.kept, report.dropped) == (40, 0)
    assert report.span == 39.0
    for field in ("rate", "isl_computed", "isl_stored", "osl"):
        np.testing.assert_array_equal(getattr(workload, field), getattr(expected, field))


def test_time_is_exact_to_a_tick(put):
    """Time since year 1 held as float64 is off by some 7 us; differences in whole ticks are not."""
    rows = ["2023-11-16 18:15:46.6805901,1,1", "2023-11-16 18:15:46.6805902,1,1", "2023-11-17 18:15:46,1,1"]
    assert read_trace(put(azure(rows[:2])))[1].span == 1e-7
    assert read_trace(put(azure(rows)))[1].span == (24 * 3600 * 10**7 - 6805901) / 1e7


def test_windows_start_at_whole_multiples_after_the_first_stamp(put):
    rows = [f"2023-11-16 18:{15 + k // 4:02d}:{k % 4 * 15:02d}.6805900,{k + 1},1" for k in range(160)]
    workload, _ = read_trace(put(azure(rows)), 15.0)
    np.testing.assert_array_equal(workload.isl_stored, np.arange(160) + 1)
    # A tick of 100 ns decides; seconds since year 1 in float64 could not tell the last two apart.
    near = [f"2023-11-16 18:15:{second},1,1" for second in ("15.6805900", "30.6805899", "30.6805900")]
    np.testing.assert_allclose(read_trace(put(azure(near)), 15.0)[0].rate * 15.0, [2, 1])


def test_short_fractions_are_tenths_not_ticks(put):
    rows = [f"2023-11-16 18:15:{second},1,1" for second in ("46", "46.25", "46.5", "47.000001")]
    for k, span in ((2, 0.25), (3, 0.5), (4, 1.000001)):
        assert read_trace(put(azure(rows[:k])))[1].span == span


def test_rows_with_one_stamp_keep_their_order_when_sorted(put):
    rows = [record(5000, 512, 5, (9,)), record(1000, 512, 5, (0,)), *(record(1000, 100, 5, (0,)) for _ in range(300))]
    workload, _ = read_trace(put(mooncake(rows)), 60.0)
    # The long one fills the cache and the short ones hit it; another order would compute 100 tokens and not 512.
    assert workload.requests * workload.mean_isl_computed == pytest.approx(1024)


def test_unsorted_rows_are_sorted_with_a_note(put):
    expected, _ = read_trace(put(azure(ROWS), "expected"))
    workload, report = read_trace(put(azure(ROWS[:10] + ROWS[20:] + ROWS[10:20])))
    np.testing.assert_array_equal(workload.rate, expected.rate)
    np.testing.assert_array_equal(workload.isl_stored, expected.isl_stored)
    assert report.notes[-1] == "time stamps were not in order (first at line 32): rows were sorted"
    assert "the last line has no line end" in report.notes[0]


def test_repeated_stamps_spread_to_the_next_stamp_or_a_usual_tick(put):
    rows = [record(ms, 1, 1, (0,)) for ms in (0, 0, 0, 3000, 6000, 6000, 60_000, 63_000, 63_000)]
    path = put(mooncake(rows))
    np.testing.assert_array_equal(np.flatnonzero(read_trace(path, 0.5)[0].rate), [0, 2, 4, 6, 12, 15, 120, 126, 129])
    raw = read_trace(path, 0.5, spread=False)[0].rate * 0.5
    np.testing.assert_array_equal(raw[[0, 6, 12, 120, 126]], [3, 1, 2, 1, 2])
    same = read_trace(put(mooncake([record(5), record(5)])))
    assert (same[0].rate.size, same[1].span, same[1].notes) == (1, 0.0, [])


def test_partly_filled_windows_keep_every_request(put):
    rows = [record(ms, 100, 10, (0,)) for ms in (1000, 1500, 16_500)]
    workload, _ = read_trace(put(mooncake(rows)), 15.0)
    np.testing.assert_allclose(workload.rate * 15.0, [2, 1])
    with_gap = read_trace(put(mooncake([*rows, record(61_000, 400, 40, (0,))])), 15.0)[0]
    np.testing.assert_allclose(with_gap.rate * 15.0, [2, 1, 0, 0, 1])
    assert with_gap.isl_stored[2] == pytest.approx(175.0)


def test_the_prefix_cache_counts_leading_blocks_and_starts_cold(put):
    rows = [
        record(0, 1024, 5, (0, 1)),  # cold: 1024 computed
        record(15_000, 1100, 5, (0, 1, 2)),  # 2 blocks known: 76 computed
        record(30_000, 1100, 5, (0, 1, 2)),  # all known, the last block partial: 0 computed
        record(45_000, 1024, 5, (9, 1)),  # block 1 is known but not leading: 1024 computed
    ]
    workload, _ = read_trace(put(mooncake(rows)), 15.0)
    np.testing.assert_array_equal(workload.isl_computed, [1024, 76, 0, 1024])
    np.testing.assert_array_equal(workload.isl_stored, [1024, 1100, 1100, 1024])
    # In the order of time, not of the file.
    turned, _ = read_trace(put(mooncake(rows[::-1])), 15.0)
    np.testing.assert_array_equal(turned.isl_computed, workload.isl_computed)


# Broken rows: each is dropped with its reason, the others are kept

BAD_CSV = [
    ("2023-11-16 18:16:00,0,5", "ContextTokens is '0'; it must be a whole number from 1"),
    ("2023-11-16 18:16:00,5,0", "0 marks a failed request"),
    ("2023-11-16 18:16:00,-5,5", "ContextTokens is '-5'"),
    ("2023-11-16 18:16:00,5,-5", "GeneratedTokens is '-5'"),
    ("2023-11-16 18:16:00,5.5,5", "ContextTokens is '5.5'"),
    ("2023-11-16 18:16:00,NaN,5", "ContextTokens is 'NaN'"),
    ("2023-11-16 18:16:00,5,Infinity", "GeneratedTokens is 'Infinity'"),
    ("2023-11-16 18:16:00,-inf,5", "ContextTokens is '-inf'"),
    ("2023-11-16 18:16:00,1e400,5", "ContextTokens is '1e400'"),
    ("2023-11-16 18:16:00,1e-400,5", "ContextTokens is '1e-400'"),
    ("2023-11-16 18:16:00,True,5", "ContextTokens is 'True'"),
    ("2023-11-16 18:16:00,,5", "ContextTokens is ''"),
    ("2023-11-16 18:16:00,5,", "GeneratedTokens is ''"),
    ("2023-11-16 18:16:00,five,5", "ContextTokens is 'five'"),
    ("2023-11-16 18:16:00,0x10,5", "ContextTokens is '0x10'"),
    ("2023-11-16 18:16:00,1_000,5", "ContextTokens is '1_000'"),
    ("2023-11-16 18:16:00,٣,0", "ContextTokens is '٣'"),
    ("2023-11-16 18:16:00,²,5", "ContextTokens is '²'"),
    (f"2023-11-16 18:16:00,{'9' * 5000},5", "ContextTokens is '9999"),
    ("2023-11-16 18:16:00,1000000001,5", "from 1 to 1000000000"),
    ("2023-11-16 18:16:00,5", "the row has 2 fields; it must have 3."),
    ("2023-11-16 18:16:00", "the row has 1 fields"),
    ("2023-11-16 18:16:00,1,374,44", "the row has 4 fields; it must have 3, without commas in a number"),
    (",5,5", "TIMESTAMP is ''"),
    (",,", "TIMESTAMP is ''"),
    ("yesterday,5,5", "TIMESTAMP is 'yesterday'; it must be a time like 2023-11-16 18:15:46.6805900"),
    ("2023-13-16 18:16:00,5,5", "TIMESTAMP is '2023-13-16 18:16:00'; it must be a date of the calendar"),
    ("2023-02-29 18:16:00,5,5", "a date of the calendar"),
    ("0000-01-01 18:16:00,5,5", "a date of the calendar"),
    ("2023-11-16 24:16:00,5,5", "a time like"),
    ("2023-11-16 18:60:00,5,5", "a time like"),
    ("2023-11-16 18:16:61,5,5", "a time like"),
    ("2023-11-16 18:16,5,5", "a time like"),
    ("2023-11-16,5,5", "a time like"),
    ("16/11/2023 18:16:00,5,5", "a time like"),
    ("1700158560,5,5", "TIMESTAMP is '1700158560'"),
    ("2023-11-16 18:16:00.,5,5", "a time like"),
    ("2023-11-16 18:16:00.12345678901,5,5", "a time like"),
    ("2023-11-16 18:16:00+1,5,5", "a time like"),
    ("٢٠٢٣-11-16 18:16:00,5,5", "a time like"),
    (HEADER, "the row repeats the header"),
    (HEADER.lower(), "the row repeats the header"),
    ("x" * 10_000_000, "the row has 1 fields"),
    (f"2023-11-16 18:16:00,{'1' * 10_000_000},5", "ContextTokens is '1111"),
    ("," * 100_000, "the row has 100001 fields"),
    ("2023-11-16 18:16:00,5,5\0", "GeneratedTokens is '5\\x00'"),
    ('"', "the row has 1 fields"),
    ("{}", "the row has 1 fields"),
    ("\ufffd\udcff,5,5", "TIMESTAMP is "),
]

BAD_JSON = [
    (record(osl=0), "output_length is 0; it must be a whole number from 1 to 1000000000; 0 marks a failed request"),
    (record(isl=0, ids=()), "input_length is 0"),
    (record(isl=-5), "input_length is -5"),
    (record(osl=-5), "output_length is -5"),
    (record(osl=2.5), "output_length is 2.5"),
    (record(osl=True), "output_length is True"),
    (record(isl=False), "input_length is False"),
    (record(osl=None), "output_length is None"),
    (record(osl="5"), "output_length is '5'"),
    (record(osl=[5]), r"output_length is [5]"),
    (record(osl={"a": {"b": {"c": 1}}}), "output_length is {'a'"),
    (record(osl=10**300), "output_length is 1000"),
    ('{"timestamp": 0, "input_length": 600, "output_length": NaN, "hash_ids": [0, 1]}', "the row holds NaN"),
    ('{"timestamp": Infinity, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}', "the row holds Infinity"),
    ('{"timestamp": 0, "input_length": 1e400, "output_length": 5, "hash_ids": [0, 1]}', "input_length is inf"),
    ('{"timestamp": 1e400, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}', "timestamp is inf"),
    (record(ms=-1), "timestamp is -1; it must be a time in ms"),
    (record(ms=10**15), "timestamp is 1000000000000000"),
    (record(ms=10**400), "timestamp is 1000"),
    (record(ms=True), "timestamp is True"),
    (record(ms="0"), "timestamp is '0'"),
    (record(ms=None), "timestamp is None"),
    (record(ids=None), "hash_ids is None; it must be a list of whole numbers"),
    (record(ids=3), "hash_ids is 3"),
    (record(ids=["0", "1"]), "hash_ids is ['0', '1']"),
    (record(ids=[0, True]), "hash_ids is [0, True]"),
    (record(ids=[0, 1.0]), "hash_ids is [0, 1.0]"),
    (record(ids=[0, [1]]), "hash_ids is [0, [1]]"),
    (record(ids=(0,)), "the length of hash_ids is 1; it must be 2, one id per 512 of 600 input tokens"),
    (record(ids=(0, 1, 2)), "the length of hash_ids is 3; it must be 2"),
    ({}, "the field timestamp is missing"),
    ({"timestamp": 0, "input_length": 600, "output_length": 5}, "the field hash_ids is missing"),
    ({"timestamp": 0, "output_length": 5, "hash_ids": [0, 1]}, "the field input_length is missing"),
    ("[]", "the row is []; it must be a JSON object"),
    ("17", "the row is 17; it must be a JSON object"),
    ("null", "the row is None"),
    ('"text"', "the row is 'text'"),
    ('{"timestamp": 0, "input_length": 600,', "no JSON"),
    ("{'timestamp': 0}", "no JSON"),
    ("# comment", "no JSON"),
    (json.dumps(record()) + json.dumps(record()), "no JSON"),
    ("[" * 200_000, "nested too deeply"),
    ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
    (record(osl=json.loads("[" * 300 + "]" * 300)), "nested too deeply"),
    (record(osl=json.loads("[" * 30 + "]" * 30)), "output_length is [["),
    ('{"timestamp": ' + "9" * 5000 + ', "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}', "the row"),
    ("x" * 10_000_000, "no JSON"),
    ('{"timestamp": 0, "input_length": 600, "output_length": "' + "y" * 10_000_000 + '", "hash_ids": [0]}', "'yyy"),
    (json.dumps(record()) + "\0", "no JSON"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_CSV, ids=range(len(BAD_CSV)))
def test_a_broken_csv_row_is_dropped_with_its_reason(put, row, reason):
    good = [*ROWS[:20], *(f"2023-11-16 19:{m:02d}:00,5,5" for m in range(60))]
    content = "\r\n".join([HEADER, *good[:70], row, *good[70:]]).encode("utf-8", errors="surrogateescape")
    path = put(b"\r\n" + content)
    workload, report = read_trace(path)
    assert (report.kept, report.dropped) == (80, 1)
    assert workload.requests == 80
    ((line, found),) = report.reasons
    assert line == 73
    assert reason in found
    assert len(found) < 200
    with pytest.raises(InputError) as error:
        read_trace(path, strict=True)
    assert str(error.value) == f"{path}, line 73: {found}"


@pytest.mark.parametrize(("row", "reason"), BAD_JSON, ids=range(len(BAD_JSON)))
@pytest.mark.parametrize("at", [0, 3])
def test_a_broken_json_row_is_dropped_with_its_reason(put, row, reason, at):
    good = [record(1000 * i) for i in range(6)]
    path = put(mooncake([*good[:at], row, *good[at:]]))
    workload, report = read_trace(path)
    assert (report.kept, report.dropped) == (6, 1)
    assert workload.requests == 6
    ((line, found),) = report.reasons
    assert line == at + 1
    assert reason in found
    assert len(found) < 250
    with pytest.raises(InputError) as error:
        read_trace(path, strict=True)
    assert str(error.value) == f"{path}, line {at + 1}: {found}"


def test_a_dropped_row_does_not_warm_the_cache(put):
    workload, report = read_trace(put(mooncake([record(0, osl=0), record(1000), record(2000)])), 1.0)
    assert report.dropped == 1
    np.testing.assert_array_equal(workload.isl_computed, [600, 0])


def test_the_report_reads_well():
    report = ReadReport(2, 7, [(line, "why.") for line in range(3, 10)], "Azure LLM CSV", 12.34, ["a note"])
    lines = str(report).split("\n")
    assert lines[:3] == ["Azure LLM CSV: 2 rows kept, 7 dropped, 12.3 s", "a note", "line 3: why."]
    assert lines[-1] == "and 2 more"


# Broken files: one sentence each

BAD_FILES = [
    (b"", "is empty; it must be either CSV with the columns TIMESTAMP"),
    (b"\xef\xbb\xbf", "is empty"),
    (b" \r\n\r\n\t\n", "is empty"),
    (HEADER.encode(), "holds a header and no rows"),
    (HEADER.encode() + b"\r\n\r\n", "holds a header and no rows"),
    (b"a,b,c\n1,2,3\n", "line 1: the columns are 'a,b,c'; they must be either CSV with the columns TIMESTAMP"),
    (b"\n\nfoo\nbar\n", "line 3: the columns are 'foo'"),
    ("\n".join(ROWS).encode(), "line 1: the columns are '2023-11-16 18:15:00.6805900,100,10'"),
    (HEADER.replace(",", ";").encode() + b"\n", "the columns are 'TIMESTAMP;ContextTokens;GeneratedTokens'"),
    (b"TIMESTAMP,ContextTokens\n2023-11-16 18:16:00,5\n", "line 1: the column GeneratedTokens is missing among"),
    (b"TIMESTAMP,in,out\n2023-11-16 18:16:00,5,5\n", "the column ContextTokens is missing among 'TIMESTAMP, in, out'"),
    (
        b"timestamp,input_length,output_length\n0,5,5\n",
        "line 1: the columns are 'timestamp,input_length,output_length'",
    ),
    (HEADER.encode() + b",timestamp\n1,2,3,4", "the column TIMESTAMP is twice or more among"),
    (b"TIMESTAMP," * 1_000_000, "the column TIMESTAMP is twice or more"),
    (b"x" * 10_000_000, "the columns are 'xxx"),
    (azure(["a,b,c"] * 9), "has no usable row (9 dropped)"),
    (azure(["2023-11-16 18:16:00,0,0"]), "has no usable row (1 dropped)"),
    (azure([HEADER] * 3), "has no usable row (3 dropped)"),
    (azure([*ROWS[:3], *["a,b,c"] * 4]), "4 of 7 rows are unusable, more than half"),
    (mooncake([record(), "{", "{"]), "2 of 3 rows are unusable"),
    (mooncake(["{}"]), "has no usable row (1 dropped)"),
    (b"{" * 5_000_000, "has no usable row"),
    (b'{"a":' * 1_000_000, "nested too deeply"),
    (b"[" * 1_000_000, "the columns are '[[["),
    (json.dumps([record(), record()]).encode(), "the columns are '[{"),
    (json.dumps([record(), record()], indent=1).encode(), "has no usable row"),
    (json.dumps(record(), indent=1).encode(), "has no usable row"),
    (bytes(range(256)) * 20, "is binary data"),
    (b"\x89PNG\r\n\x1a\n\0\0\0", "is binary data"),
    (b"PK\x03\x04\x14\0\0\0", "is binary data"),
    (b"\xff\xfe" + azure(ROWS).decode().encode("utf-16-le"), "is UTF-16 text; convert it to UTF-8"),
    (azure(ROWS).decode().encode("utf-16-be"), "is binary data"),
    (b"\x1f\x8b", "is damaged gzip data"),
    (b"\x1f\x8bgarbage and more garbage", "is damaged gzip data"),
    (gzip.compress(azure(ROWS))[:-9], "is damaged gzip data"),
    (gzip.compress(azure(ROWS))[:-8] + b"12345678", "is damaged gzip data"),
    (gzip.compress(azure(ROWS))[:20] + b"\xff" * 40, "is damaged gzip data"),
    (gzip.compress(azure(ROWS))[:10] + b"\xff" * 40, "is damaged gzip data"),
    (gzip.compress(b""), "is empty"),
    (azure([*ROWS, "9999-12-31 23:59:59,5,5"]), "line 2 and line 42 are 2.5"),
    (azure([*ROWS, "0001-01-01 00:00:00+23:59,5,5"]), "windows of 15 s; correct the time stamp or choose a window"),
    (mooncake([record(), record(10**14)]), "line 1 and line 2 are 1e+11 s apart"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_broken_file_is_refused_in_one_sentence(put, content, message):
    path = put(content)
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700 + len(str(path))


def test_paths_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv does not exist; give the path"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder; name one file in it"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(str(tmp_path / "a\0b"))
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / ("long" * 100))


@pytest.mark.parametrize(
    ("window", "message"),
    [(0, "window is 0.0"), (-1, "window is -1.0"), (math.nan, "window is nan"), (math.inf, "window is inf"),
     (10**400, "window is 10000"), (1e-9, "choose a window of at least"), (1e-320, "choose a window of at least")],
)  # fmt: skip
def test_windows_that_cannot_be(put, window, message):
    with pytest.raises(InputError, match=message):
        read_trace(put(azure(ROWS)), window)


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_never_ends_in_a_traceback(put, seed):
    """Bytes replaced, cut, repeated or inserted in either format: a consistent result or an `InputError`."""
    rng = np.random.default_rng(seed)
    source = azure(ROWS) if seed % 2 else mooncake([record(500 * i, 600, 5 + i, (0, i)) for i in range(40)])
    damaged = bytearray(source)
    for _ in range(rng.integers(1, 40)):
        at = int(rng.integers(len(damaged)))
        kind = rng.integers(4)
        if kind == 0:
            damaged[at] = int(rng.integers(256))
        elif kind == 1:
            del damaged[at : at + int(rng.integers(1, 6))]
        elif kind == 2:
            damaged[at:at] = damaged[at : at + 30]
        else:
            damaged[at:at] = [b"-", b"\n", b"\r", b'"', b"{", b"[", b"e9", b",", b"NaN", b"\xff"][rng.integers(10)]
    content = gzip.compress(bytes(damaged)) if seed % 5 == 0 else bytes(damaged)
    try:
        workload, report = read_trace(put(content))
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert isinstance(workload, Workload)
        assert workload.requests == pytest.approx(report.kept, rel=1e-12)
        assert len(report.reasons) == report.dropped <= report.kept
        assert np.isfinite([workload.mean_isl, workload.mean_osl, workload.mean_isl_computed]).all()
