"""Each format of recorded load: what its rows mean, against published figures or an independent calculation."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings

from fluidq._errors import InputError
from fluidq.io import read_trace
from fluidq.io._arrivals import spread
from fluidq.io._files import line_blocks
from fluidq.io._formats import _fast_json, csv_requests, json_requests, rates
from fluidq.io._formats._rows import Rows
from fluidq.io._opening import after
from fluidq.io._prefix import in_order, leading_hits
from tests.helpers import data

CODE = "azure-llm-2023/AzureLLMInferenceTrace_code.csv"


@pytest.fixture
def put(tmp_path):
    def write(lines: list[str] | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(lines if isinstance(lines, bytes) else "\n".join(lines).encode())
        return path

    return write


# Azure 2024 and 2025


def test_azure_2024_mixes_stamps_with_and_without_fraction_and_names_utc(put):
    rows = ["2024-05-12 00:00:00+00:00,300,20", "2024-05-12 00:00:00.500000+00:00,100,40", "2024-05-12 00:00:01Z,50,1"]
    workload, report = read_trace(put(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]), 0.5)
    assert report.format == "Azure LLM CSV"
    assert report.span == 1.0
    np.testing.assert_array_equal(workload.isl_stored, [300, 100, 50])


def test_azure_2025_has_a_column_of_images_that_is_ignored(put):
    rows = ["2025-01-01 00:00:00,3,300,20", "2025-01-01 00:00:01,0,100,40"]
    workload, _ = read_trace(put(["TIMESTAMP,NumImages,ContextTokens,GeneratedTokens", *rows]), 1.0)
    np.testing.assert_array_equal(workload.isl_stored, [300, 100])
    np.testing.assert_array_equal(workload.osl, [20, 40])


# BurstGPT and Splitwise

SHORT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
LONG = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def test_burstgpt_reads_both_column_sets_and_counts_failures(put):
    requests = [(5, "ChatGPT", 472, 18), (45, "ChatGPT", 1087, 230), (45, "GPT-4", 417, 276), (118, "GPT-4", 1360, 0)]
    short = [SHORT, *(f"{t},{m},{i},{o},{i + o},Conversation log" for t, m, i, o in requests)]
    long = [LONG, *(f"{t}.0,1722ac82-0a46,43,{m},{i},{o},{i + o},API log" for t, m, i, o in requests)]
    for lines in (short, long):
        workload, report = read_trace(put(lines), 20.0)
        assert report.format == "BurstGPT CSV"
        assert (report.kept, report.dropped, report.failed, report.span) == (3, 1, 1, 40.0)
        assert report.reasons == [
            (5, "Response tokens is '0'; it must be a whole number from 1 to 1000000000; 0 marks a failed request.")
        ]
        np.testing.assert_allclose(workload.rate * 20, [1, 0, 2])
        assert workload.mean_isl == pytest.approx((472 + 1087 + 417) / 3)
        assert "rows of 2 models are read as one workload: ChatGPT 2, GPT-4 1" in report.notes


def test_a_total_that_is_no_sum_drops_the_row(put):
    _, report = read_trace(put([SHORT, "1,GPT-4,10,5,15,x", "2,GPT-4,10,5,16,x", "3,GPT-4,5,10,15,x"]))
    assert report.reasons == [(3, "Total tokens is 16; it must be 15, the sum of Request tokens and Response tokens.")]


def test_many_failures_are_no_reason_to_refuse_a_trace(put):
    rows = [f"{t},GPT-4,10,{0 if t % 4 else 3},{10 if t % 4 else 13},x" for t in range(40)]
    _, report = read_trace(put([SHORT, *rows]))
    assert (report.kept, report.failed) == (10, 30)


def test_a_clock_of_whole_seconds_spreads_within_the_second_only(put):
    rows = [f"{t},GPT-4,10,3,13,x" for t in (0, 0, 0, 0, 60, 61, 120, 120, 180)]
    workload, report = read_trace(put([SHORT, *rows]), 0.25)
    np.testing.assert_array_equal(np.flatnonzero(workload.rate), [0, 1, 2, 3, 240, 244, 480, 482, 720])
    assert any("within the tick of 1 s" in note for note in report.notes)
    raw, report = read_trace(put([SHORT, *rows]), 0.25, spread=False)
    assert raw.rate[0] * 0.25 == 4
    assert not any("tick" in note for note in report.notes)


def test_splitwise_times_are_seconds_to_any_digit(put):
    header = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
    rows = ["0,2,0,0.3128372973123,1,512,128", "1,2,0,1.0e0,1,256,64", "2,2,0,12,1,100,10"]
    workload, report = read_trace(put([header, *rows]), 1.0)
    assert report.format == "Splitwise CSV"
    assert report.span == pytest.approx(12 - 0.3128372973, abs=2e-7)
    assert workload.mean_isl == pytest.approx(868 / 3)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_traces_read_the_same(put, pack):
    lines = "\n".join([SHORT, *(f"{t},GPT-4,{t + 1},3,{t + 4},x" for t in range(500))]).encode()
    workload, report = read_trace(put(pack(lines), "trace.txt"))
    assert (report.kept, workload.requests) == (500, 500)


# Mooncake's other fields, Qwen-Bailian


def test_mooncake_with_the_other_field_names(put):
    rows = [{"created_time": 1000 * t, "input_tokens": 600, "output_tokens": 5, "hash_ids": [0, t]} for t in range(4)]
    workload, report = read_trace(put([json.dumps(row) for row in rows]), 1.0)
    assert (report.format, report.kept) == ("Mooncake JSONL", 4)
    np.testing.assert_array_equal(workload.isl_computed, [600, 88, 88, 88])


def test_turns_that_give_a_delay_follow_the_turn_before(put):
    one = {"session_id": "a", "timestamp": 1000, "input_length": 10, "output_length": 5}
    rows = [one, {**one, "session_id": "b", "timestamp": 1500}, {**one, "delay": 2000}, {**one, "delay_ms": 500}]
    for row in rows[2:]:
        del row["timestamp"]
    workload, report = read_trace(put([json.dumps(row) for row in rows]), 0.5)
    np.testing.assert_array_equal(np.flatnonzero(workload.rate), [0, 1, 4, 5])
    assert any("2 rows give a delay and no time" in note for note in report.notes)
    alone = put([json.dumps({**rows[2], "session_id": "c"}), *(json.dumps(row) for row in rows[:2])])
    assert read_trace(alone)[1].reasons[0][1].startswith("the field timestamp is missing")


def test_without_block_ids_every_token_counts_as_computed(put):
    rows = [{"timestamp": 1000 * t, "input_length": 600, "output_length": 5} for t in range(4)]
    workload, report = read_trace(put([json.dumps(row) for row in rows]), 1.0)
    assert workload.hit == 0.0
    assert any("no row has hash_ids" in note for note in report.notes)


def test_qwen_bailian_counts_seconds_and_blocks_of_16_tokens(put):
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 40, "output_length": 9, "type": "text",
         "turn": 1, "hash_ids": [1, 2, 3]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 61.114, "input_length": 50, "output_length": 132,
         "type": "text", "turn": 2, "hash_ids": [1, 2, 9, 4]},
    ]  # fmt: skip
    workload, report = read_trace(put([json.dumps(row) for row in rows]), 30.0)
    assert report.format == "Qwen-Bailian JSONL"
    assert report.span == pytest.approx(61.114, abs=1e-7)
    np.testing.assert_array_equal(workload.isl_computed[[0, 2]], [40, 18])
    wrong = [json.dumps({**row, "hash_ids": [1]}) for row in rows]
    with pytest.raises(InputError, match="one id per 16 of 40 input tokens"):
        read_trace(put(wrong))


def test_ids_of_64_bits_are_kept_apart(put):
    ids = [2**64 - 1, 2**63, 0, 2**63 - 1]
    row = {"timestamp": 0, "input_length": 2048, "output_length": 1, "hash_ids": ids}
    rows = [row, {**row, "timestamp": 1000}, {**row, "timestamp": 2000, "hash_ids": [*ids[:2], 7, 8]}]
    workload, _ = read_trace(put([json.dumps(r) for r in rows]), 1.0)
    np.testing.assert_array_equal(workload.isl_computed, [2048, 0, 1024])
    _, report = read_trace(put([json.dumps(r) for r in [*rows, {**row, "hash_ids": [2**64, 0, 0, 0]}]]), 1.0)
    assert "64 bits" in report.reasons[0][1]


# Prefix cache


def brute_force(requests: list[list[int]], capacity: float) -> list[int]:
    """The same cache by a list: least recently used first, the first block of a request used last."""
    used: list[int] = []
    hits = []
    for blocks in requests:
        held = 0
        while held < len(blocks) and blocks[held] in used:
            held += 1
        hits.append(held)
        for block in blocks[::-1]:
            if block in used:
                used.remove(block)
            used.append(block)
        while len(used) > capacity:
            used.pop(0)
    return hits


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=30), st.integers(0, 15), st.booleans())
def test_the_prefix_cache_is_that_of_a_plain_list(requests, capacity, wide):
    step = -(2**59) if wide else 1
    ids = np.array([block * step for blocks in requests for block in blocks], dtype=np.int64)
    counts = np.array([len(blocks) for blocks in requests], dtype=np.int32)
    np.testing.assert_array_equal(leading_hits(ids, counts, capacity), brute_force(requests, capacity))
    np.testing.assert_array_equal(leading_hits(ids, counts), brute_force(requests, math.inf))


def test_a_larger_cache_never_hits_less_and_a_huge_one_is_infinite():
    path = data("mooncake/conversation_trace.jsonl.gz")
    sizes = [0, 1e5, 1e6, 1e7, 1e8, 1e9, math.inf]
    hits = [read_trace(path, 60.0, cache_tokens=size)[0].hit for size in sizes]
    assert hits == sorted(hits)
    assert hits[0] == 0.0
    assert hits[1] < 0.2 < hits[4]
    assert hits[5] == hits[6] == pytest.approx(0.3736, abs=5e-5)
    with pytest.raises(InputError, match="cache_tokens is -1"):
        read_trace(path, cache_tokens=-1)


def test_blocks_follow_their_requests_into_another_order():
    ids, counts = np.arange(6, dtype=np.int64), np.array([3, 0, 1, 2], dtype=np.int32)
    moved, sizes = in_order(ids, counts, np.array([3, 1, 0, 2]))
    np.testing.assert_array_equal(moved, [4, 5, 0, 1, 2, 3])
    np.testing.assert_array_equal(sizes, [2, 0, 3, 1])


def test_spreading_keeps_order_and_moves_nothing_past_the_next_stamp():
    rng = np.random.default_rng(3)
    times = np.sort(rng.integers(0, 200, 500) * 3.0)
    moved, count, tick = spread(times)
    assert tick == 3.0
    assert count == 500 - np.unique(times).size
    assert (np.diff(moved) > 0).all()
    assert ((moved - times >= 0) & (moved - times < 3.0)).all()


# Tables of rates


@pytest.mark.parametrize(
    ("name", "windows", "rate", "isl", "osl", "cover"),
    [
        ("deepseek-r1", 144, 16.0, 1268, 1527, ""),
        ("mm-image", 144, 9.5, 1442, 130, ""),
        ("m-large", 2016, 195.8, None, None, "62.7%"),
        ("m-small", 2016, 1174, None, None, "43.2%"),
    ],
)
def test_servegen_windows_carry_their_rates_and_lengths(name, windows, rate, isl, osl, cover):
    workload, report = read_trace(data(f"servegen/windows_{name}.csv"), 600.0)
    assert (report.format, report.kept, workload.rate.size) == ("ServeGen windows", windows, windows)
    assert report.span == windows * 600
    assert workload.requests / workload.duration == pytest.approx(rate, rel=5e-3)
    if isl is not None:
        assert workload.mean_isl == pytest.approx(isl, abs=0.5)
        assert workload.mean_osl == pytest.approx(osl, abs=0.6)
    else:
        assert any(f"lengths are known for {cover}" in note for note in report.notes)
    finer, _ = read_trace(data(f"servegen/windows_{name}.csv"))
    assert finer.requests == pytest.approx(workload.requests, rel=1e-12)
    assert finer.mean_osl == pytest.approx(workload.mean_osl, rel=1e-9)


@pytest.mark.parametrize(
    ("workload", "lengths"),
    [
        ("deepseek-r1", "length_summary_deepseek-r1.csv.gz"),
        ("deepseek-r1", "length_pmf_deepseek-r1.jsonl.gz"),
        ("mm-image", "length_summary_mm-image.csv.gz"),
        ("m-large", "length_summary_m-large.csv.gz"),
    ],
)
def test_servegen_clients_with_their_lengths_give_the_published_windows(workload, lengths):
    """The windows file was made from these two by its publisher: an independent sum."""
    clients, report = read_trace(
        data(f"servegen/clients_{workload}.csv.gz"), 600.0, lengths=data(f"servegen/{lengths}")
    )
    windows, _ = read_trace(data(f"servegen/windows_{workload}.csv"), 600.0)
    assert report.format == "ServeGen clients"
    np.testing.assert_allclose(clients.rate, windows.rate, rtol=1e-4)
    # The windows file has two decimals.
    np.testing.assert_allclose(clients.isl_stored, windows.isl_stored, rtol=1e-5, atol=0.0051)
    np.testing.assert_allclose(clients.osl, windows.osl, rtol=1e-5, atol=0.0051)


def test_rates_without_lengths_need_them_from_elsewhere(put):
    clients = data("servegen/clients_mm-image.csv.gz")
    with pytest.raises(InputError, match="gives rates and no isl; give isl=, or lengths="):
        read_trace(clients)
    curve = data("azure-llm-2024-digitised/conv_requests_per_minute.csv")
    workload, report = read_trace(curve, 60.0, isl=1625, osl=107)
    assert report.format == "Azure 2024 load curve"
    assert workload.requests == pytest.approx(27_304_000, rel=0.006)  # its README: -0.49 %
    assert workload.duration == pytest.approx(7 * 86_400, rel=1e-3)
    assert (workload.mean_isl, workload.mean_osl) == pytest.approx((1625, 107))
    everyone = data("vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz")
    workload, _ = read_trace(curve, 60.0, lengths=everyone)
    assert workload.mean_isl == pytest.approx(2588, abs=0.5)
    with pytest.raises(InputError, match="has no clients"):
        read_trace(curve, lengths=data("servegen/length_summary_m-small.csv.gz"))
    with pytest.raises(InputError, match="is no file of lengths"):
        read_trace(curve, lengths=curve)
    trace = data("azure-llm-2023/AzureLLMInferenceTrace_code.csv")
    with pytest.raises(InputError, match=r"isl is given and .* has lengths of its own"):
        read_trace(trace, isl=5)
    with pytest.raises(InputError, match="isl is -5"):
        read_trace(curve, isl=-5, osl=1)


@pytest.mark.parametrize(
    ("header", "rows", "rates"),
    [
        ("time,rate,isl,osl", ["0,1,100,10", "10,3,100,10"], [1, 3]),
        ("time_s,rate_req_s,isl,osl", ["5,1,100,10", "15,3,100,10"], [1, 3]),
        ("Time [s],Rate (req/s),ISL,OSL", ["0,1,100,10", "10,3,100,10"], [1, 3]),
        ("minute,requests_per_min,isl,osl", ["0,60,100,10", "1,180,100,10"], [1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3]),
        ("t_ms,rps,isl,osl", ["0,1,100,10", "10000,3,100,10"], [1, 3]),
        ("timestamp,requests,isl,osl", ["0,10,100,10", "10,30,100,10"], [1, 3]),
        ("timestamp,rate,isl,osl", ["2024-01-01 00:00:00,1,100,10", "2024-01-01T00:00:10Z,3,100,10"], [1, 3]),
        ("TIMESTAMP,rate,isl,osl", ["2024-01-01 00:00:00,1,100,10", "2024-01-01T00:00:10Z,3,100,10"], [1, 3]),
        ("osl,isl,extra,rate,time", ["10,100,x,1,0", "10,100,x,3,10"], [1, 3]),
    ],
)
def test_plain_tables_of_rates_in_several_spellings(put, header, rows, rates):
    workload, report = read_trace(put([header, *rows]), 10.0)
    assert report.format == "rate table"
    np.testing.assert_allclose(workload.rate, rates, rtol=1e-12)
    assert (workload.mean_isl, workload.mean_osl) == (100, 10)


def test_lengths_computed_hits_blanks_and_gaps_of_a_rate_table(put):
    rows = ["0,2,100,40,10", "10,0,,,", "20,1,,,", "60,1,200,200,30"]
    workload, report = read_trace(put(["time,rate,isl,isl_computed,osl", *rows]), 10.0)
    np.testing.assert_allclose(workload.rate, [2, 0, 1, 0, 0, 0, 1], atol=1e-12)
    mean = (2 * 100 + 200) / 3  # over the requests whose lengths are known
    assert workload.isl_stored[2] == pytest.approx(mean)
    assert workload.isl_computed[0] == pytest.approx(40)
    assert any("1 gaps between rows (30 s together)" in note for note in report.notes)
    assert any("rate of 0: idle, or not recorded" in note for note in report.notes)
    hit, _ = read_trace(put(["time,rate,isl,hit,osl", "0,2,100,0.25,10", "10,1,100,0.25,10"]), 10.0)
    assert hit.hit == pytest.approx(0.25)
    idle = put(["time,rate,isl,osl", "0,0,1,1", "1,0,1,1"])
    with pytest.raises(InputError, match="holds no request"):
        read_trace(idle)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("20,-1,100,10", "rate is '-1'; it must be a finite number from 0"),
        ("20,nan,100,10", "rate is 'nan'"),
        ("20,inf,100,10", "rate is 'inf'"),
        ("20,,100,10", "rate is ''"),
        (",1,100,10", "time is ''"),
        ("20,1,0,10", "isl is 0.0; it must be > 0 tokens where requests came"),
        ("20,1,100,-1", "osl is '-1'"),
        ("20,1e300,100,10", "rate is '1e300'"),
        ("20,1_0,100,10", "rate is '1_0'"),
        ("20,1,100", "the row has 3 fields; it must have 4."),
        ("10,1,100,10", "time is '10'; it must be a time that no row before it has"),
        ("time,rate,isl,osl", "the row repeats the header."),
        ("20,\udcff,100,10", "is no UTF-8"),
    ],
)
def test_a_broken_row_of_a_rate_table_is_dropped(put, row, reason):
    good = ["0,1,100,10", "10,1,100,10", "30,1,100,10"]
    path = put("\n".join(["time,rate,isl,osl", *good[:2], row, good[2]]).encode(errors="surrogateescape"))
    _, report = read_trace(path)
    assert (report.kept, report.dropped) == (3, 1)
    assert report.reasons[0][0] == 4
    assert reason in report.reasons[0][1]
    with pytest.raises(InputError, match="line 4"):
        read_trace(path, strict=True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["time,rate,rps,isl,osl", "0,1,1,1,1"], "could both be the rate"),
        (["time,minute,rate,isl,osl", "0,1,1,1,1"], "could both be the time"),
        (["time,rate,isl,osl"], "holds a header and no rows"),
        (["time,rate,isl,osl", "0,1,1,1"], "one usable row, so how long it holds is unknown"),
        (["time,rate,rate", "0,1,1", "1,1,1"], "could both be the rate"),
        (["time,rate,isl,osl,x,x", "0,1,1,1,1,1", "1,1,1,1,1,1"], "the column 'x' is given twice"),
        (["time,rate,isl,osl", "0,1,1,1", "1e9,1,1,1"], "over 10,000,000 windows"),
        (["time,load,isl,osl", "0,1,1,1", "1,1,1,1"], "one of rate"),
    ],
)
def test_a_broken_table_of_rates_is_refused(put, lines, message):
    with pytest.raises(InputError, match=message):
        read_trace(put(lines), 1.0)


def test_odd_figures_are_pointed_out(put):
    seconds = [{"timestamp": t / 1000, "input_length": 9000, "output_length": 5} for t in range(1000)]
    assert "check the unit of time" in str(read_trace(put([json.dumps(r) for r in seconds]), 1.0)[1])
    slow = [f"{t * 20_000},GPT-4,10,3,13,x" for t in range(20)]
    assert "check the unit of time" in str(read_trace(put([SHORT, *slow]), 100.0)[1])
    swapped = [f"{t},GPT-4,3,900,903,x" for t in range(20)]
    assert "not swapped" in str(read_trace(put([SHORT, *swapped]))[1])
    large = [f"{t * 1000},GPT-4,4000000,3,4000003,x" for t in range(20)]
    assert "check the unit of the lengths" in str(read_trace(put([SHORT, *large]), 100.0)[1])
    mixed = [f"{t * 7919 % 1000},GPT-4,10,3,13,x" for t in range(100)]
    assert "check the column of time" in str(read_trace(put([SHORT, *mixed]))[1])
    assert "check" not in str(read_trace(data("azure-llm-2023/AzureLLMInferenceTrace_conv.csv"))[1])


# The quick readers read exactly what the row-by-row readers read

FIELDS = st.sampled_from(
    ["1", "007", "12", "999999999", "1000000000", "1000000001", "99999999999", "0", "-3", "", " 5 ", "5.0", '"8"', "x"]
)
STAMP_TEXTS = [
    "2023-11-16 18:15:46.6805900", "2024-02-29T00:00:00Z", "2023-02-29 00:00:00", "2023-11-16 18:15:46", "2023-11-16",
    "2024-12-31 23:59:59.9+00:00", "2024-12-31 23:59:59.123456789", "2024-12-31 23:59:59+05:30",
    "2024-03-32 00:00:00", "2023-04-31 00:00:00", "0000-01-01 00:00:00",
    "2023-11-16 18:15:46.", "2023-13-16 18:15:46", "1900-02-29 01:02:03", "2000-02-29 01:02:03.0000001Z", "", "1",
    "2023-11-16 24:00:00", "2023-11-16 18:15:46.68059001234", '"2023-11-16 18:15:46"', "２023-11-16 18:15:46"
]  # fmt: skip
SECOND_TEXTS = [
    "0", "5", "45.0", "45.", ".5", "1e3", "1.5e-3", "0.12345678", "0.3128372973123456789", "99999999999", "-1", "nan",
    "inf", "", "1.2.3", "100000000000", "100000000001", "0012", " 7 ", "7\t", "1_0", "999999999999"
]  # fmt: skip


STAMPS, SECONDS = st.sampled_from(STAMP_TEXTS), st.sampled_from(SECOND_TEXTS)


def slowly(layout, lines: list[str]) -> Rows:
    rows = Rows("file", strict=False)
    reader = csv_requests._Reader(rows, layout, [name.lower() for name in lines[0].split(",")])
    for number, line in enumerate(lines[1:], 2):
        if line and not line.isspace():
            reader.row(number, line)
    return rows


def same(one: Rows, two: Rows) -> None:
    for name in ("line", "ticks", "isl", "osl", "count", "ids", "dropped", "failed", "reasons", "models"):
        assert getattr(one, name) == getattr(two, name), name


@pytest.mark.parametrize("layout", [csv_requests.AZURE, csv_requests.SPLITWISE])
def test_every_spelling_of_a_time_at_once_is_that_one_by_one(layout):
    texts = STAMP_TEXTS if layout is csv_requests.AZURE else SECOND_TEXTS
    days = [f"{y}-{m:02d}-{d:02d} 00:00:00" for y in (1900, 2000, 2023, 2024) for m in range(14) for d in range(33)]
    lines = [",".join(layout.needed), *(f"{text},12,30" for text in [*texts, *days])]
    quick = Rows("file", strict=False)
    csv_requests.read(quick, layout, list(layout.needed), 1, [(2, "\n".join(lines[1:]).encode())])
    same(quick, slowly(layout, lines))
    assert len(quick) > (1400 if layout is csv_requests.AZURE else 5)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(STAMPS, FIELDS, FIELDS, st.sampled_from(["", ",extra", ",a,b", '"'])), max_size=12))
def test_azure_rows_at_once_are_the_rows_one_by_one(rows):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{a},{b},{c}{d}" for a, b, c, d in rows)]
    quick = Rows("file", strict=False)
    csv_requests.read(quick, csv_requests.AZURE, lines[0].split(","), 1, [(2, "\n".join(lines[1:]).encode())])
    same(quick, slowly(csv_requests.AZURE, lines))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(SECONDS, st.sampled_from(["GPT-4", "", '"a,b"']), FIELDS, FIELDS, FIELDS), max_size=12))
def test_burstgpt_rows_at_once_are_the_rows_one_by_one(rows):
    lines = [SHORT, *(f"{t},{m},{i},{o},{n},log" for t, m, i, o, n in rows)]
    lines += [f"{t},{m},12,30,42,log" for t, m, *_ in rows]
    quick = Rows("file", strict=False)
    csv_requests.read(quick, csv_requests.BURSTGPT, SHORT.split(","), 1, [(2, "\n".join(lines[1:]).encode())])
    same(quick, slowly(csv_requests.BURSTGPT, lines))


CELLS = st.sampled_from(
    ["0", "1", "2.5", "1e2", "600", "", "-1", "nan", "inf", "1e400", "x", " 7 ", "1_0", "1000000001", "1e9", ".5", "5."]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(CELLS, min_size=6, max_size=7), max_size=6),
    st.sampled_from(["time", "minute", "t_ms"]),
    st.sampled_from(["hit", "isl_computed"]),
)
@example([["9", "1", "10", "5", "600", "1"]], "time", "isl_computed")
def test_rows_of_rates_at_once_are_the_rows_one_by_one(cells, clock, given_as):
    header = [clock, "rate", "isl", "osl", given_as, "rate_with_lengths_req_s"]
    columns = rates.columns_of("file", 1, header)
    assert columns is not None
    lines = [f"{k},1,10,5,0.5,{k % 2}" for k in range(3)] + [",".join(row) for row in cells]
    quick, slow = (rates._Reader(Rows("file", strict=False), columns) for _ in range(2))
    for number, line in enumerate(lines, 2):
        quick.block(number, f"{line}\n".encode())
        with mock.patch.object(rates, "_bulk", return_value=None):
            slow.block(number, f"{line}\n".encode())
    assert quick.rows.reasons == slow.rows.reasons
    np.testing.assert_array_equal(np.concatenate(quick.kept), np.concatenate(slow.kept))
    whole = rates._Reader(Rows("file", strict=False), columns)
    whole.block(2, "\n".join(lines).encode())
    assert whole.rows.reasons == slow.rows.reasons
    np.testing.assert_array_equal(np.concatenate(whole.kept), np.concatenate(slow.kept))


def test_a_quoted_comma_moves_no_field():
    """Seven texts between commas, six fields: the numbers would be read from the wrong columns."""
    header = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
    lines = [header, '"a,b",0,10.3,1,120,50', '"a,b",2,0,10.3,1,120,50']
    quick = Rows("file", strict=False)
    csv_requests.read(quick, csv_requests.SPLITWISE, header.split(","), 1, [(2, "\n".join(lines[1:]).encode())])
    same(quick, slowly(csv_requests.SPLITWISE, lines))
    assert quick.reasons == [(2, "the row has 6 fields; it must have 7.")]
    assert list(quick.isl) == [120]


NUMBERS = st.sampled_from(["0", "1", "600", "512", "513", "007", "-1", "1e3", "2.5", "9" * 19, "9" * 18, "null", '"3"'])
RECORDS = st.tuples(
    NUMBERS, NUMBERS, NUMBERS, st.lists(NUMBERS | st.just("4"), max_size=3), st.sampled_from([", ", ",", " ,", ",  "]),
    st.sampled_from(["", "", "", " ", "}", ', "x": 1']),
)  # fmt: skip


def mooncake_line(record) -> str:
    time, isl, osl, ids, gap, tail = record
    listed = gap.join(ids)
    return f'{{"timestamp": {time}, "input_length": {isl}, "output_length": {osl}, "hash_ids": [{listed}]{tail}}}'


@settings(max_examples=150, deadline=None)
@given(st.lists(RECORDS, max_size=10), st.booleans())
def test_mooncake_rows_at_once_are_the_rows_one_by_one(records, tight):
    good = ['{"timestamp": 5, "input_length": 600, "output_length": 5, "hash_ids": [3, 4]}']
    odd = [good[0].replace("[3, 4]", "[,3 4]"), good[0].replace('stamp": 5', '5stamp": '), good[0].replace("5}", "5 }")]
    lines = [good[0], *odd, *(line for record in records for line in (mooncake_line(record), good[0]))]
    if tight:
        lines = [line.replace(", ", ",").replace(": ", ":") for line in lines]
    quick, slow = Rows("file", strict=False), Rows("file", strict=False)
    json_requests.read(quick, json_requests.MOONCAKE, [(1, "\n".join(lines).encode())])
    reader = json_requests._Reader(slow, json_requests.MOONCAKE)
    for number, line in enumerate(lines, 1):
        reader.line(number, line)
    reader.finish()
    same(quick, slow)
    template = _fast_json.template_of(lines[0].encode(), json_requests.MOONCAKE.needed)
    assert template is not None
    assert len(_fast_json.records("\n".join(lines).encode(), template).fits) >= len(records) + 1


@pytest.mark.parametrize(
    ("name", "layout", "piece"),
    [(CODE, csv_requests.AZURE, 4099), ("mooncake/mooncake_trace_1000.jsonl.gz", json_requests.MOONCAKE, 997)],
)
def test_rows_are_the_same_in_blocks_of_any_size(name, layout, piece):
    found = []
    for blocks in (line_blocks(data(name)), line_blocks(data(name), piece=piece)):
        rows = Rows("file", strict=True)
        if layout is csv_requests.AZURE:
            csv_requests.read(rows, layout, list(layout.needed), 1, after(1, blocks))
        else:
            json_requests.read(rows, layout, blocks)
        found.append(rows)
    same(*found)
    assert len(found[0]) in (8819, 1000)


MILLION = """
import resource, sys, time
import fluidq.io
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
workload, report = fluidq.io.read_trace(sys.argv[1], 60.0)
print(report.kept, workload.requests, time.process_time() - start,
      (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_a_million_rows_within_seconds_and_bounded_memory(put):
    """Measured: 0.4 s of CPU and 64 MB more than before for 43 MB of Azure rows; 0.7 s for BurstGPT."""
    hours = [f"{h:02d}:{m:02d}:{s:02d}" for h in range(24) for m in range(60) for s in range(60)]
    rows = [f"2024-05-12 {hours[k % 86_400]}.{k % 997:07d}+00:00,{k % 9000 + 1},{k % 900 + 1}" for k in range(10**6)]
    path = put("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *sorted(rows)]).encode())
    done = subprocess.run(
        [sys.executable, "-c", MILLION, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    kept, requests, seconds, megabytes = (float(word) for word in done.stdout.split())
    assert kept == requests == 10**6
    assert seconds < 5.0
    assert megabytes < 300
