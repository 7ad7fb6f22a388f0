"""The file of results: what is written is read back, what is broken is refused by line."""

import json
from dataclasses import asdict, replace

import pytest

from transfuse.bench.record import ResultError, Row, Run, Spread, append, read

RUN = Run("r1", "transfuse bench", "2026-01-01T00:00:00+00:00", "cpu", 7, None, {}, [(4, 2.0)], {})
ROW = Row("r1", "slug", "small", "n1 ci1 co1 i1 k1", "fp32", "cpu", "transfuse", "ok")
TIMED = replace(
    ROW,
    samples=[0.1, 0.2],
    time=Spread(0.15, 0.1, 0.2),
    ratio=Spread(2, 1, 3),
    floor=0.03,
    floor_of_definition=0.015,
)


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, [RUN])
    append(path, [ROW, TIMED])
    assert read(path) == ([RUN], [ROW, TIMED])
    assert read(path)[1][1].of_floor == pytest.approx(0.2)
    assert read(path)[1][1].of_definition == pytest.approx(0.1)


def test_the_floor_of_an_older_file_is_that_of_the_definition(tmp_path):
    """It had one floor, and no ceiling of special functions."""
    path = tmp_path / "r.jsonl"
    run, row = asdict(RUN), asdict(TIMED)
    del run["special"], row["floor_of_definition"]
    path.write_text("".join(json.dumps(each) + "\n" for each in (run, row)))
    [read_run], [read_row] = read(path)
    assert read_run == RUN
    assert read_row == replace(TIMED, floor=None, floor_of_definition=0.03)
    assert read_row.of_floor is None
    assert read_row.of_definition == pytest.approx(0.2)


def test_the_later_of_two_headers_of_a_run_counts(tmp_path):
    path = tmp_path / "r.jsonl"
    final = replace(RUN, matmul={"fp32": 5.0})
    append(path, [RUN, ROW, final])
    assert read(path)[0] == [final]


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, [RUN, ROW, TIMED])
    whole = path.read_text()
    for cut in range(1, 200, 7):
        path.write_text(whole[:-cut])
        assert read(path) == ([RUN], [ROW])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "Expecting value"),
        ("{}", "as transfuse bench writes them: it lacks 'kind'"),
        ("[1]", "list indices"),
        ('{"kind": "walk"}', "unknown kind 'walk'"),
        ('{"kind": "row", "time": null, "ratio": null}', "missing"),
        ('{"kind": "run", "version": 99}', "version 99, this reads 1"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, reason):
    path = tmp_path / "r.jsonl"
    append(path, [RUN])
    with path.open("a") as file:
        file.write(line + "\n")
    append(path, [ROW])
    with pytest.raises(ResultError, match=rf"r\.jsonl:2: .*{reason}"):
        read(path)


def test_a_row_without_its_run_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, [replace(ROW, run="other")])
    with pytest.raises(ResultError, match="belongs to run 'other', which is not here"):
        read(path)
