"""Hundreds of malformed files made from good ones: each is refused, or its bad rows are reported, or it reads the same.

A number that changes without a word is the one outcome that fails: where neither an error, nor a dropped row, nor a
note tells of the damage, the workload must be that of the undamaged file.
"""

import functools
import gzip
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from fluidq._errors import InputError
from fluidq.io import read_trace
from fluidq.io.tables import inspect_file
from fluidq.io.traces import read_lengths

ROWS = 60


def table(header: str, row) -> list[list[str]]:
    return [header.split(","), *([str(cell) for cell in row(k)] for k in range(ROWS))]


# Good files: long prompts, short answers, a request every 10 s, as tables of cells (CSV) or of records (JSON).
CSV = {
    "azure": (
        table(
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            lambda k: (f"2023-11-16 18:{k // 6:02d}:{k % 6}0.6805901", 12_000 + k, 50 + k % 9),
        ),
        (0, 1, 2),
    ),
    "azure 2025": (
        table(
            "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
            lambda k: (f"2025-01-16T18:{k // 6:02d}:{k % 6}0+00:00", k % 3, 12_000 + k, 50 + k % 9),
        ),
        (0, 2, 3),
    ),
    "burstgpt": (
        table(
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            lambda k: (10 * k, "GPT-4", 12_000 + k, 50 + k % 9, 12_050 + k + k % 9, "API log"),
        ),
        (0, 2, 3),
    ),
    "burstgpt with sessions": (
        table(
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
            lambda k: (f"{10 * k}.0", f"id-{k}", 4, "ChatGPT", 12_000 + k, 50, 12_050 + k, "Conversation log"),
        ),
        (0, 4, 5),
    ),
    "splitwise": (
        table(
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size",
            lambda k: (k, 2, 0, 10 * k + 0.3, 1, 12_000 + k, 50 + k % 9),
        ),
        (3, 5, 6),
    ),
    "servegen windows": (
        table(
            "window_start_s,rate_req_s,rate_with_lengths_req_s,mean_input_tokens,mean_output_tokens",
            lambda k: (600 * k, 2.5 + 7 * k % 5, 2.5 + 7 * k % 5, 1200 + k % 7, 60.5 + k % 5),
        ),
        (0, 1, 3, 4),
    ),
    "rates": (
        table("minute,requests_per_min,isl,osl", lambda k: (k, 20 + 7 * k % 11, 1200 + k % 7, 60.5 + k % 5)),
        (0, 1, 2, 3),
    ),
    "rates with hits": (
        table("time,rate,isl,hit,osl", lambda k: (15 * k, 2 + 7 * k % 5, 1200, 0.25, 60)),
        (0, 1, 2, 3, 4),
    ),
}
JSON = {
    "mooncake": (
        lambda k: {"timestamp": 300 * k, "input_length": 12_000, "output_length": 50, "hash_ids": [*range(24)]},
        ("timestamp", "input_length", "output_length"),
    ),
    "mooncake tokens": (
        lambda k: {"created_time": 300 * k, "input_tokens": 12_000 + k, "output_tokens": 50},
        ("created_time", "input_tokens", "output_tokens"),
    ),
    "qwen": (
        lambda k: {
            "chat_id": k, "parent_chat_id": -1, "timestamp": 10.5 * k, "input_length": 64, "output_length": 5,
            "type": "text", "turn": 1, "hash_ids": [k, 1, 2, 3],
        },
        ("timestamp", "input_length", "output_length"),
    ),
}  # fmt: skip

BAD_VALUES = {
    "NaN": "NaN", "infinity": "inf", "minus infinity": "-inf", "negative": "-5", "huge": "9" * 30, "overflow": "1e400",
    "zero": "0", "empty": "", "text": "many", "hex": "0x1F", "underscore": "1_000", "other digits": "\u0663\u0664",
    "thousands": "12,000", "NUL": "5\0", "quote": '"5', "unit": "5 s", "true": "True", "boolean": "true",
}  # fmt: skip


def text(rows: list[list[str]], end: str = "\n") -> bytes:
    return end.join([*(",".join(row) for row in rows), ""]).encode()


def csv_cases(rows: list[list[str]], needed: tuple[int, ...]) -> dict[str, bytes]:
    """Malformed versions of one CSV file by what was done to it."""
    good, head = text(rows), ",".join(rows[0]).encode() + b"\n"
    cases = {
        "BOM": b"\xef\xbb\xbf" + good,
        "CRLF": text(rows, "\r\n"),
        "CR": text(rows, "\r"),
        "mixed line ends": good.replace(b"\n", b"\r\n", 7).replace(b"\n", b"\r", 3),
        "blank lines": good.replace(b"\n", b"\n\n \n"),
        "header twice": head + good,
        "header in the middle": good[: len(good) // 2].rpartition(b"\n")[0] + b"\n" + good,
        "BOM in the middle": text(rows[:30]) + b"\xef\xbb\xbf" + text([rows[0], *rows[30:]]),
        "no header": text(rows[1:]),
        "header only": head,
        "empty": b"",
        "spaces": b" \n\t\n ",
        "cut in a row": good[: -len(rows[-1][-1]) - 5],
        "cut in the last number": good[:-2],
        "UTF-16": good.decode().encode("utf-16"),
        "UTF-16 without mark": good.decode().encode("utf-16-be"),
        "UTF-32": good.decode().encode("utf-32"),
        "EBCDIC": good.decode().encode("cp500"),
        "semicolons": good.replace(b",", b";"),
        "tabs": good.replace(b",", b"\t"),
        "extra field in one row": good.replace(b"\n", b",7\n", 9).replace(b",7\n", b"\n", 8),
        "extra column": text([[*row, "x" if k else "extra"] for k, row in enumerate(rows)]),
        "columns in another order": text([row[::-1] for row in rows]),
        "binary rows": head + bytes(range(256)) * 40,
        "binary in the middle": good[:200] + bytes(range(1, 9)) + good[200:],
        "gzip": gzip.compress(good),
        "gzip cut off": gzip.compress(good)[:-12],
        "gzip with a wrong byte": _flip(gzip.compress(good)),
        "bomb": _bomb(),
        "long line": head + b"7" * (17 << 20),
        "no row is right": head + b"\n".join([b"x" * 30] * 40),
        "JSON rows": head + b'{"timestamp": 0}\n' * 70,
        "comments": b"# made by hand\n" + good,
        "all quoted": text([[f'"{cell}"' for cell in row] for row in rows]),
        "unclosed quote": good.replace(b"\n", b'\n"', 5),
        "shuffled": text([rows[0], *sorted(rows[1:], key=lambda row: row[needed[1]][::-1] + row[needed[0]][::-1])]),
    }
    for at in needed:
        name = rows[0][at]
        cases[f"without {name}"] = text([[*row[:at], *row[at + 1 :]] for row in rows])
        cases[f"{name} twice"] = text([[*row, row[at]] for row in rows])
        cases[f"{name} misspelt"] = text([[*rows[0][:at], name[:-2] + "zz", *rows[0][at + 1 :]], *rows[1:]])
        for what, value in BAD_VALUES.items():
            if (name, what) == ("hit", "zero"):  # a hit rate like any other
                continue
            changed = [list(row) for row in rows]
            changed[20][at] = value
            cases[f"{name} {what}"] = text(changed)
    first, second, last = needed[0], needed[1], needed[-1]
    for what, one, two in (("time and size", first, second), ("input and output", needed[-2], last)):
        swapped = [list(row) for row in rows]
        for row in swapped[1:]:
            row[one], row[two] = row[two], row[one]
        cases[f"values of {what} swapped"] = text(swapped)
    return cases


def json_cases(row, needed: tuple[str, ...]) -> dict[str, bytes]:
    """Malformed versions of one file of JSON lines by what was done to it."""
    records = [row(k) for k in range(ROWS)]
    lines = [json.dumps(record) for record in records]
    good = "\n".join([*lines, ""]).encode()

    def with_line(line: str) -> bytes:
        return "\n".join([*lines[:20], line, *lines[21:], ""]).encode(errors="surrogateescape")

    cases = {
        "BOM": b"\xef\xbb\xbf" + good,
        "CRLF": good.replace(b"\n", b"\r\n"),
        "CR": good.replace(b"\n", b"\r"),
        "mixed line ends": good.replace(b"\n", b"\r\n", 7),
        "blank lines": good.replace(b"\n", b"\n\n \n"),
        "empty": b"",
        "cut in a row": good[:-20],
        "cut at the brace": good[:-2],
        "UTF-16": good.decode().encode("utf-16"),
        "EBCDIC": good.decode().encode("cp500"),
        "single quotes": good.replace(b'"', b"'"),
        "one line": good.replace(b"\n", b" "),
        "one array": b"[" + b",".join(line.encode() for line in lines) + b"]",
        "indented": json.dumps(records, indent=1).encode(),
        "binary in the middle": good[:200] + bytes(range(1, 9)) + good[200:],
        "wrong encoding in a row": with_line(lines[20].replace("}", ', "note": "\udcff"}')),
        "gzip cut off": gzip.compress(good)[:-12],
        "gzip with a wrong byte": _flip(gzip.compress(good)),
        "bomb": _bomb(),
        "long line": good + b'"' + b"7" * (17 << 20),
        "deep nesting": with_line("[" * 100_000 + "]" * 100_000),
        "deep nesting in a row": with_line(lines[20].replace("}", ', "x": ' + "[" * 500 + "]" * 500 + "}")),
        "deep file": b'{"a":' * 200_000,
        "a comment": with_line("// nothing"),
        "an array as a row": with_line(json.dumps(list(records[20].values()))),
        "null as a row": with_line("null"),
        "shuffled": "\n".join([*lines[::7], *(line for k, line in enumerate(lines) if k % 7), ""]).encode(),
    }
    if "hash_ids" in records[0]:
        for what, ids in {"too few": [1], "floats": [0.5] * 24, "text": "0-23", "missing": None}.items():
            changed = {**records[20], "hash_ids": ids}
            if ids is None:
                del changed["hash_ids"]
            cases[f"ids {what}"] = with_line(json.dumps(changed))
    for name in needed:
        cases[f"without {name}"] = with_line(json.dumps({k: v for k, v in records[20].items() if k != name}))
        cases[f"{name} nowhere"] = "\n".join(
            json.dumps({k: v for k, v in record.items() if k != name}) for record in records
        ).encode()
        cases[f"{name} twice"] = with_line(lines[20][:-1] + f', "{name}": 7}}')
        for what, value in {
            "NaN": "NaN", "infinity": "Infinity", "negative": "-5", "huge": "9" * 30, "overflow": "1e400", "zero": "0",
            "text": '"many"', "number as text": '"12"', "null": "null", "true": "true", "list": "[5]",
            "many digits": "9" * 6000, "object": '{"a": 5}',
        }.items():  # fmt: skip
            mark = f'"{name}": {json.dumps(records[20][name])}'
            assert mark in lines[20]
            cases[f"{name} {what}"] = with_line(lines[20].replace(mark, f'"{name}": {value}'))
    swapped = [{**r, needed[1]: r[needed[2]], needed[2]: r[needed[1]]} for r in records]
    cases["values of input and output swapped"] = "\n".join(json.dumps(r) for r in swapped).encode()
    scale = 1000 if "chat_id" in records[0] else 1e-3
    wrong = [{**r, needed[0]: r[needed[0]] * scale} for r in records]
    cases["time in the wrong unit"] = "\n".join([*(json.dumps(r) for r in wrong), ""]).encode()
    return cases


def _flip(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 0x5A
    return bytes(changed)


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(bytes(48 << 20))


def all_cases() -> dict[tuple[str, str], bytes]:
    cases = {}
    for kind, (rows, needed) in CSV.items():
        cases |= {(kind, what): content for what, content in csv_cases(rows, needed).items()}
    for kind, (row, needed) in JSON.items():
        cases |= {(kind, what): content for what, content in json_cases(row, needed).items()}
    seconds = [[f"{float(cell) * 1000:g}" if at == 0 else cell for at, cell in enumerate(row)]
               for row in CSV["burstgpt"][0][1:]]  # fmt: skip
    cases["burstgpt", "time in the wrong unit"] = text([CSV["burstgpt"][0][0], *seconds])
    return cases


CASES = all_cases()
for kind, _ in [case for case in CASES if case[1] == "long line" and case[0] not in ("azure", "rates", "mooncake")]:
    del CASES[kind, "long line"]  # 17 MB each


@functools.cache
def good(kind: str):
    content = text(CSV[kind][0]) if kind in CSV else "\n".join([*map(json.dumps, map(JSON[kind][0], range(ROWS))), ""])
    return read(content if isinstance(content, bytes) else content.encode())


def read(content: bytes):
    """What `read_trace` makes of the content: (workload, report), or the refusal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.data"
        path.write_bytes(content)
        try:
            found = read_trace(path, 30.0)
            inspect_file(path)
        except InputError as error:
            found = str(error)
        if isinstance(found, str):
            assert str(path) in found
            assert "\n" not in found
            assert len(found) < 1200 + len(str(path))
        return found


@functools.cache
def outcome(kind: str, what: str) -> str:
    """refused, dropped (rows reported), noted, or same; anything else is an assertion that fails."""
    found = read(CASES[kind, what])
    if isinstance(found, str):
        return "refused"
    workload, report = found
    assert report.dropped == len(report.reasons)
    assert report.kept + report.dropped == report.rows
    assert np.isfinite([workload.mean_isl, workload.mean_osl, workload.mean_isl_computed, workload.requests]).all()
    if report.dropped:
        assert all(line > 0 and why for line, why in report.reasons)
        return "dropped"
    original, before = good(kind)
    if set(report.notes) - set(before.notes):
        return "noted"
    for field in ("rate", "isl_stored", "isl_computed", "osl"):
        np.testing.assert_array_equal(getattr(workload, field), getattr(original, field), err_msg=field)
    return "same"


@pytest.mark.parametrize("kind", [*CSV, *JSON])
def test_the_good_file_is_good(kind):
    workload, report = good(kind)
    assert (report.kept, report.dropped) == (ROWS, 0)
    assert not any("check" in note for note in report.notes)
    assert workload.requests > 0


@pytest.mark.parametrize(("kind", "what"), CASES, ids=[f"{kind}: {what}" for kind, what in CASES])
def test_a_malformed_file_is_refused_reported_or_harmless(kind, what):
    got = outcome(kind, what)
    harmless = {"BOM", "CRLF", "CR", "mixed line ends", "blank lines", "gzip", "extra column", "all quoted"}
    if what in harmless:
        assert got == "same"
    elif what == "columns in another order":
        assert got in ("same", "noted")
    elif re.search(r"(NaN|infinity|negative|overflow|text|hex|underscore|digits|true|boolean|list|object|huge)$", what):
        assert got in ("dropped", "refused")
    elif re.search(r"swapped|wrong unit|shuffled|cut in the last number", what):
        assert got in ("noted", "dropped", "refused")
    elif re.search(r"^(empty|header only|UTF|EBCDIC|bomb|gzip |long line|no row|semicolons|no header|deep file)", what):
        assert got == "refused"


def test_how_many_were_tried_and_what_they_got():
    tally = Counter(outcome(kind, what) for kind, what in CASES)
    print(f"\n{len(CASES)} malformed files: " + ", ".join(f"{n} {name}" for name, n in tally.most_common()))
    assert len(CASES) >= 200
    assert set(tally) == {"refused", "dropped", "noted", "same"}
    assert tally["refused"] > 100
    assert tally["dropped"] > 100


def test_refusals_of_rows_name_the_line():
    for kind, what in (("azure", "ContextTokens NaN"), ("mooncake", "output_length NaN"), ("rates", "isl negative")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.data"
            path.write_bytes(CASES[kind, what])
            with pytest.raises(InputError, match=f"line {20 + (kind not in JSON) + (kind in JSON)}"):
                read_trace(path, strict=True)


# Fuzz: bytes of a good file replaced, cut, repeated, inserted

PIECES = [
    b",",
    b"\n",
    b"\r",
    b'"',
    b"-",
    b"e9",
    b"NaN",
    b"\xff",
    b"\0",
    b"{",
    b"[",
    b"]",
    b":",
    b"\xef\xbb\xbf",
    b"9" * 25,
    b".",
    b" ",
]
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["cut", "insert", "repeat", "swap"]), st.integers(0, 40),
              st.sampled_from(PIECES)), min_size=1, max_size=8,
)  # fmt: skip


def damaged(content: bytes, edits) -> bytes:
    data = bytearray(content)
    for place, how, size, piece in edits:
        at = place % (len(data) + 1)
        if how == "cut":
            del data[at : at + size]
        elif how == "insert":
            data[at:at] = piece
        elif how == "repeat":
            data[at:at] = data[at : at + size]
        else:
            data[at : at + len(piece)] = piece
    return bytes(data)


@pytest.mark.parametrize("kind", [*CSV, *JSON])
def test_fuzzed_files_end_in_a_result_or_a_sentence(kind):
    rows = CSV[kind][0] if kind in CSV else None
    content = text(rows) if rows else "\n".join(map(json.dumps, map(JSON[kind][0], range(ROWS)))).encode()

    @settings(max_examples=20, deadline=None, database=None)
    @given(EDITS)
    def check(edits):
        found = read(damaged(content, edits))
        if not isinstance(found, str):
            workload, report = found
            assert np.isfinite([workload.mean_isl, workload.mean_osl, workload.mean_isl_computed]).all()
            assert 0 <= workload.hit <= 1
            assert len(report.reasons) == report.dropped

    check()


SUMMARY = "client,window_start_s,field,mean,sd,p50,p90,p99,max,support_points\n" + "".join(
    f"{k},{w},{f},{100 + k},1,1,1,1,1,5\n"
    for k in range(3)
    for w in (0, 21_600)
    for f in ("input_tokens", "output_tokens")
)
PMF = "\n".join(
    json.dumps({"client": k, "window_start_s": 0, "input_tokens": [[5, 0.5], [7, 0.5]], "output_tokens": [[3, 1.0]]})
    for k in range(6)
)
PLAIN = "num_prefill_tokens,num_decode_tokens,num_total_tokens\n" + "".join(f"{k},5,{k + 5}\n" for k in range(1, 9))


@settings(max_examples=120, deadline=None)
@given(st.sampled_from([SUMMARY, PMF, PLAIN]), EDITS)
@example(PMF, [(62, "swap", 0, b"9" * 25)])
def test_fuzzed_files_of_lengths_end_in_a_result_or_a_sentence(content, edits):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lengths"
        path.write_bytes(damaged(content.encode(), edits))
        try:
            found, _ = read_lengths(path)
            inspect_file(path)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            means = [pair for _, pairs in found.table.values() for pair in pairs]
            assert np.isfinite(np.array([*means, found.everyone or (0.0, 0.0)])).all()


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
@example(b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff\n")
@example(b"[" * 5000)
@example(b"time,rate,isl,osl\n0,1,1,1\n0.0000001,1,1,1\n")
def test_any_bytes_are_refused_or_read(content):
    read(content)


# What fuzzing and review found; each was a wrong number, a traceback or a stall once.

BURST = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
FOUND = {
    "seconds beyond 64 bits were read as negative": (BURST + b"0,G,12,30,42,x\n999999999999,G,12,30,42,x\n", (1, 1)),
    "a header of brackets took quadratic time": (b"[" * 200_000 + b"\n1\n", None),
    "a lone gap was taken for the beat of the clock": (BURST + b"5,G,1,1,2,x\n45,G,1,1,2,x\n45,G,1,1,2,x\n", (3, 0)),
    "an unclosed quote was dropped from a number": (
        b'TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,5,7\n2024-01-01 00:00:01,5,"7\n',
        (1, 1),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name):
    content, expected = FOUND[name]
    found = read(content)
    if expected is None:
        assert isinstance(found, str)
    else:
        workload, report = found
        assert (report.kept, report.dropped) == expected
        assert workload.duration <= 60.0
        assert workload.rate.min() >= 0
