"""Streams from files, frames, dictionaries, generators and public sets."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from assay.core.errors import DataError
from assay.streams import (
    DATASETS,
    from_arff,
    from_arrays,
    from_csv,
    from_dicts,
    from_frame,
    from_libsvm,
    from_parquet,
    load,
    make_stream,
    run,
)
from assay.streams.errors import RegimeError, StreamError, UnknownFeatureValue
from assay.streams.rows import Row, RowBlock


def rows(stream):
    return [(row.to_dict(), y) for row, y in stream]


PLANT = "time,temp,valve,fault\n3,21.5,open,ok\n1,,shut,broken\n2,20.0,,ok\n"
EXPECTED = [
    ({"valve=shut": 1.0}, "broken"),
    ({"temp": 20.0}, "ok"),
    ({"temp": 21.5, "valve=open": 1.0}, "ok"),
]


def test_csv_with_order_ids_and_categories(tmp_path):
    path = tmp_path / "plant.csv"
    path.write_text(PLANT)
    stream = from_csv(path, label="fault", id_columns=["time"], order_by="time")
    assert rows(stream) == EXPECTED
    assert stream.classes == ("broken", "ok")
    assert stream.name == "plant"
    packed = tmp_path / "plant.csv.gz"
    packed.write_bytes(gzip.compress(PLANT.encode()))
    assert rows(from_csv(packed, label="fault", id_columns=["time"], order_by="time")) == EXPECTED


def test_parquet_is_the_same_as_csv(tmp_path):
    path = tmp_path / "plant.csv"
    path.write_text(PLANT)
    pd.read_csv(path).to_parquet(tmp_path / "plant.parquet")
    assert rows(from_parquet(tmp_path / "plant.parquet", "fault", id_columns=["time"], order_by="time")) == EXPECTED


def test_a_csv_read_lazily_is_the_same_as_one_read_whole(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(2500, 3)), columns=list("abc")).mask(rng.random((2500, 3)) < 0.3)
    frame["y"] = rng.integers(0, 2, 2500)
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    whole, lazy = from_csv(path, "y"), from_csv(path, "y", lazy=True, classes=(0, 1))
    assert rows(whole) == rows(lazy)
    np.testing.assert_array_equal(run("masked_pa", whole).scores, run("masked_pa", lazy).scores)
    with pytest.raises(StreamError, match="leave out order_by"):
        from_csv(path, "y", lazy=True, order_by="a")


def test_arff_nominal_attributes_become_categories(tmp_path):
    path = tmp_path / "p.arff"
    path.write_text(
        "@relation p\n@attribute temp numeric\n@attribute valve {open,shut}\n@attribute fault {ok,broken}\n@data\n"
        "21.5,open,ok\n?,shut,broken\n20.0,?,ok\n"
    )
    assert rows(from_arff(path, "fault")) == [
        ({"temp": 21.5, "valve=open": 1.0}, "ok"), ({"valve=shut": 1.0}, "broken"), ({"temp": 20.0}, "ok"),
    ]  # fmt: skip
    path.write_text("this is no arff file")
    with pytest.raises(StreamError, match="not an ARFF file"):
        from_arff(path, "fault")


def test_libsvm_absent_and_zero(tmp_path):
    path = tmp_path / "s.libsvm"
    path.write_text("+1 1:0.5 3:2\n-1 2:1\n")
    assert rows(from_libsvm(path)) == [({1: 0.5, 3: 2.0}, 1), ({2: 1.0}, -1)]
    assert rows(from_libsvm(path, zeros="zero"))[1] == ({1: 0.0, 2: 1.0, 3: 0.0}, -1)
    path.write_text("one two three\n")
    with pytest.raises(StreamError, match="not a LIBSVM file"):
        from_libsvm(path)


def test_frames_with_text_booleans_and_missing_labels():
    frame = pd.DataFrame({"note": ["Pump pump stuck", None, "all fine"], "on": [True, False, True], "y": [1, None, 0]})
    stream = from_frame(frame, "y", text=["note"])
    got = rows(stream)
    assert got[0] == ({"note:pump": 2.0, "note:stuck": 1.0, "on=True": 1.0}, 1.0)
    assert got[1][0] == {"on=False": 1.0}
    assert got[1][1] != got[1][1]
    assert got[2][0] == {"note:all": 1.0, "note:fine": 1.0, "on=True": 1.0}
    hidden = stream.masked("probabilistic", p=0.0, empty="keep")
    assert [r for r, _ in rows(hidden)] == [{}, {}, {}]


def test_bad_cells_name_row_and_column():
    with pytest.raises(UnknownFeatureValue, match=r"row 1, column 'a' holds 'x'"):
        from_frame(pd.DataFrame({"a": ["1", "x"], "y": [0, 1]}), "y", categorical=[])
    with pytest.raises(UnknownFeatureValue, match=r"row 1, column 'x1' is inf"):
        rows(from_arrays(np.array([[1.0, 2.0], [3.0, np.inf]]), [0, 1]))
    with pytest.raises(UnknownFeatureValue, match=r"feature 'a' in row 2 has the value -?inf"):
        rows(from_dicts([({}, 0), ({"a": 1}, 1), ({"a": float("inf")}, 1)]))
    with pytest.raises(UnknownFeatureValue, match="turn a category into a feature named a="):
        Row.from_dict({"a": "red"})
    with pytest.raises(StreamError, match="there is no column 'why'"):
        from_frame(pd.DataFrame({"a": [1], "y": [1]}), "why")
    with pytest.raises(StreamError, match="stands twice"):
        from_arrays(np.ones((1, 2)), [1], columns=["a", "a"])
    with pytest.raises(StreamError, match="2 rows but 1 labels"):
        from_arrays(np.ones((2, 2)), [1])


def test_iterators_allow_one_pass_and_functions_many():
    data = [({"a": 1.0}, 0), ({"b": 2.0}, 1)]
    once = from_dicts(iter(data))
    assert len(rows(once)) == 2
    with pytest.raises(StreamError, match="used up"):
        rows(once)
    many = from_dicts(lambda: iter(data))
    assert rows(many) == rows(many)
    with pytest.raises(RegimeError, match="made of dictionaries"):
        many.masked("sudden")


def test_blocks_of_rows_and_of_arrays_agree():
    X = np.random.default_rng(0).normal(size=(40, 6))
    X[X > 0.3] = np.nan
    block = RowBlock.from_array(X, list("abcdef"))
    again = RowBlock.from_rows(block.row(t) for t in range(40))
    assert [block.row(t).to_dict() for t in range(40)] == [again.row(t).to_dict() for t in range(40)]
    part = block.slice(10, 20)
    assert [part.row(t).to_dict() for t in range(10)] == [block.row(t).to_dict() for t in range(10, 20)]


@pytest.mark.parametrize(
    ("name", "shape", "positives"),
    [
        ("wdbc", (569, 30), 212), ("wpbc", (198, 33), 47), ("ionosphere", (351, 34), 225),
        ("australian", (690, 14), 307), ("wbc", (699, 9), 241), ("diabetes_f", (768, 8), 268),
        ("german", (1000, 24), 700), ("krvskp", (3196, 36), 1669), ("spambase", (4601, 57), 1813),
        ("magic04", (19020, 10), 12332),
    ],
)  # fmt: skip
def test_public_tables_have_their_published_shape_and_classes(public_stream, name, shape, positives):
    X, y = public_stream(name, raw=True).arrays()
    assert X.shape == shape
    assert int(y.sum()) == positives
    shuffled, labels = public_stream(name).arrays()
    order = np.random.default_rng(42).permutation(len(X))
    np.testing.assert_array_equal(shuffled, X[order])
    np.testing.assert_array_equal(labels, y[order])


def test_real_missing_values_are_absent(public_stream):
    X, _ = public_stream("wbc", raw=True).arrays()
    assert np.isnan(X).sum() == 16
    X, _ = public_stream("wpbc", raw=True).arrays()
    assert np.isnan(X).sum() == 4


def test_a_file_with_another_number_of_rows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path))
    (tmp_path / "magic04.data").write_text("1,2,3,4,5,6,7,8,9,10,g\n" * 5)
    with pytest.raises(StreamError, match=r"19020 rows and 10 columns as published; this file gave \(5, 10\)"):
        load("magic04")


def test_files_for_the_user_to_get_are_read_when_they_are_there(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"batch1.dat must be got by hand from https://archive"):
        load("gas")
    for i in range(1, 11):
        (tmp_path / f"batch{i}.dat").write_text(f"{1 + i % 6};10.000000 1:15596.16 2:1.868 128:-2.5\n")
    with pytest.raises(StreamError, match=r"this file gave \(10, 128\)"):
        load("gas")
    (tmp_path / "Dry_Bean_Dataset.arff").write_text(
        "@relation b\n@attribute Area integer\n@attribute Class {SEKER,BOMBAY}\n@data\n1,SEKER\n2,BOMBAY\n"
    )
    assert rows(load("dry_bean")) == [({"Area": 1.0}, "SEKER"), ({"Area": 2.0}, "BOMBAY")]
    (tmp_path / "diabetic_data.csv").write_text(
        "encounter_id,patient_nbr,race,age,readmitted\n1,2,?,[0-10),<30\n3,4,Asian,[10-20),NO\n"
    )
    assert rows(load("diabetes_us")) == [({"age=[0-10)": 1.0}, 1), ({"race=Asian": 1.0, "age=[10-20)": 1.0}, 0)]
    for name, text in (("pos/1.txt", "Good film"), ("neg/2.txt", "bad Film film")):
        (tmp_path / "aclImdb" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "aclImdb" / name).write_text(text)
    got = sorted(rows(load("imdb")), key=str)
    assert got == [({"text:bad": 1.0, "text:film": 2.0}, 0), ({"text:good": 1.0, "text:film": 1.0}, 1)]
    for part, n in (("TRAIN", 67), ("TEST", 1029)):
        lines = [f"{1 + i % 2} " + " ".join("0.5" for _ in range(24)) for i in range(n)]
        (tmp_path / f"ItalyPowerDemand_{part}.txt").write_text("\n".join(lines))
    assert load("ipd").n_rows == 1096
    (tmp_path / "svmguide3").write_text("\n".join(f"{(-1) ** i} 1:0.5 22:1" for i in range(1243)))
    assert load("svmguide3").arrays()[0].shape == (1243, 21)


def test_names_that_do_not_exist():
    with pytest.raises(StreamError, match="did you mean wdbc"):
        load("wdbx")
    with pytest.raises(StreamError, match="never published"):
        load("crowdsense_c3")
    assert len(DATASETS) >= 22


@pytest.mark.parametrize("kind", ["linear_drift", "hyperplane", "rbf", "higgs_like", "mixed", "words"])
def test_generated_streams_follow_their_bayes_score(kind):
    made = make_stream(kind, 6000, 8, seed=1)
    labels = np.concatenate([np.asarray(y) for _, y in made.stream.blocks()])
    log_odds = made.bayes(0, 6000)
    p = expit(log_odds)
    # calibration: labels are draws from the stated probabilities
    z = (labels - p).sum() / np.sqrt((p * (1 - p)).sum() + 1e-9)
    assert abs(z) < 4
    order = np.argsort(p)
    for part in np.array_split(order, 5):
        z = (labels[part] - p[part]).sum() / np.sqrt((p[part] * (1 - p[part])).sum() + 1e-9)
        assert abs(z) < 4
    np.testing.assert_array_equal(made.bayes(1000, 1100), log_odds[1000:1100])
    again = make_stream(kind, 6000, 8, seed=1)
    assert rows(again.stream.head(50)) == rows(made.stream.head(50))
    assert rows(make_stream(kind, 6000, 8, seed=2).stream.head(5)) != rows(made.stream.head(5))


def test_the_vocabulary_of_words_grows():
    made = make_stream("words", 4000, 10)
    seen: set = set()
    sizes = []
    for t, (row, _) in enumerate(made.stream):
        seen.update(row.ids)
        if t in (999, 3999):
            sizes.append(len(seen))
    assert sizes[1] > 1.5 * sizes[0]


def test_bad_generators():
    with pytest.raises(StreamError, match="did you mean rbf"):
        make_stream("rbff")
    with pytest.raises(StreamError, match="at least one row"):
        make_stream("rbf", n=0)
