"""Tables as people have them: what becomes of each column, and that it is the same every time."""

import datetime
import decimal
import gzip

import numpy as np
import pandas as pd
import pytest

from healgp import load, tables
from healgp.columns import MOST_CATEGORIES, Column, TableEncoder, describe
from healgp.tables import TableModel

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = {"kernel": "rbf", "max_iter": 3, "random_state": 0, "points_per_expert": 60}


def houses(n=200, seed=0):
    """A table with every kind of column, and targets for every task."""
    rng = np.random.default_rng(seed)
    size, age = rng.uniform(30, 200, n), rng.uniform(0, 80, n)
    town = rng.choice(["Ulm", "Köln", "New York, NY"], n)
    sold = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    garden = rng.random(n) < 0.4
    price = size * (1 + 0.5 * (town == "Köln")) - 0.5 * age + 20 * garden + rng.standard_normal(n)
    table = pd.DataFrame({
        "size": size, "age": age, "town": town, "sold": sold.strftime("%Y-%m-%d"), "garden": garden,
        "country": "here", "price": price,
        "dear": np.where(price > np.median(price), "dear", "cheap"),
        "visits": rng.poisson(np.exp(size / 150)),
    })  # fmt: skip
    table.loc[::9, "age"] = np.nan
    table.loc[::11, "town"] = None
    table["garden"] = table["garden"].astype(object)
    table.loc[::13, "garden"] = None
    return table


def encoded(table):
    """The encoder of all columns, and what it makes of the table."""
    columns = [describe(table[name])[0] for name in table.columns]
    encoder = TableEncoder([column for column in columns if column is not None])
    return encoder, encoder.transform(table)[0]


def test_each_column_by_hand():
    table = pd.DataFrame({
        "x": [1.0, np.nan, 3.0, 8.0],
        "town": ["b", "a", None, "b"],
        "day": ["1970-01-02", "1970-01-03T12:00:00", "1969-12-31", "1970-01-01T00:00:00+02:00"],
        "stamp": pd.to_datetime(["1970-01-11", None, "1970-01-01", "1970-01-01"]),
        "span": pd.to_timedelta([36, 0, 12, 24], unit="h"),
        "yes": [True, False, True, True],
        "maybe": pd.Series([True, None, False, False], dtype=object),
        "same": "s",
        "none": [None, None, None, None],
        "code": pd.Categorical([2, 1, 2, 2]),
        "date": [datetime.date(1970, 1, i) for i in (1, 2, 3, 4)],
        "exact": [decimal.Decimal("1.5"), decimal.Decimal(2), None, decimal.Decimal(1)],
    })  # fmt: skip
    encoder, X = encoded(table)
    expected = {
        "x": [1, 3, 3, 8], "x is missing": [0, 1, 0, 0],
        "town=a": [0, 1, 0, 0], "town=b": [1, 0, 0, 1], "town is missing": [0, 0, 1, 0],
        "day": [1, 2.5, -1, -1 / 12],
        "stamp": [10, 0, 0, 0], "stamp is missing": [0, 1, 0, 0],
        "span": [1.5, 0, 0.5, 1], "yes": [1, 0, 1, 1],
        "maybe": [1, 0, 0, 0], "maybe is missing": [0, 1, 0, 0],
        "code=1": [0, 1, 0, 0], "code=2": [1, 0, 1, 1], "date": [0, 1, 2, 3],
        "exact": [1.5, 2, 1.5, 1], "exact is missing": [0, 0, 1, 0],
    }  # fmt: skip
    assert list(X.columns) == list(expected) == encoder.outputs
    for name, values in expected.items():
        np.testing.assert_allclose(X[name], values, atol=1e-12, err_msg=name)
    lines = [describe(table[name])[1] for name in table.columns]
    assert lines[0] == (
        "x: number, 1 of 4 missing: the median stands there, and one more column says where"
    )
    assert lines[7] == "same: left out, it is the same in every row"
    assert lines[8] == "none: left out, it has no values"
    assert all(line.startswith(name + ": ") for line, name in zip(lines, table, strict=True))


def test_the_same_values_however_they_are_stored():
    days = ["2020-01-01", "2020-01-02", "2020-01-03"]
    table = pd.DataFrame({"code": pd.Categorical([1, 2, 3]), "flag": [True, False, True],
                          "day": pd.to_datetime(days)})  # fmt: skip
    encoder, X = encoded(table)
    others = [
        pd.DataFrame({"code": [1.0, 2.0, 3.0], "flag": ["True", "false", "TRUE"],
                      "day": days}),
        pd.DataFrame({"code": ["1", "2", "3"], "flag": [1, 0, 1],
                      "day": pd.to_datetime(table["day"]).dt.tz_localize("UTC")}),
        table.convert_dtypes(),
        table.astype({"flag": "bool[pyarrow]", "day": "timestamp[s][pyarrow]"}),
        table[["day", "flag", "code"]].assign(more=["x", "y", "z"]),
    ]  # fmt: skip
    for other in others:
        pd.testing.assert_frame_equal(encoder.transform(other)[0], X)


def test_new_values_are_none_of_the_old_and_said():
    table = pd.DataFrame({"town": ["a", "b", "a"], "x": [1.0, 2.0, 9.0]})
    encoder, _ = encoded(table)
    new = pd.DataFrame({"town": ["c", "d", "c", None, "a"], "x": [1.0, np.nan, 1.0, 1.0, 1.0]})
    X, said = encoder.transform(new)
    assert X["town=a"].tolist() == [0, 0, 0, 0, 1]
    assert X["town=b"].tolist() == [0, 0, 0, 0, 0]
    assert X["x"].tolist() == [1, 2, 1, 1, 1]
    assert len(said) == 3
    assert said[0].startswith("The column 'town' has 2 values that training did not have, in 3")
    assert said[1].startswith("The column 'town' is missing in 1 rows, and never was")
    assert said[2].startswith("The column 'x' is missing in 1 rows, and never was")


@pytest.mark.parametrize(("values", "kind", "message"), [
    (["1", "2", "secret"], "number", r"'c' is of the kind number, and 1 .* first in row 3\)"),
    ([1.0, np.inf, 2.0], "number", r"'c' has 1 infinite values \(the first in row 2\)"),
    (["2020-01-01", "secret", "01/02/2020"], "date", r"kind date, and 2 .* first in row 2\)"),
    ([1, 2, 3], "date", "kind date, and 3"),
    (pd.to_datetime(["2020-01-01"] * 3), "number", "kind number, and 3"),
    ([True, "secret", False], "boolean", "kind boolean, and 1"),
    ([1, 2, 3], "duration", "kind duration, and 3"),
])  # fmt: skip
def test_columns_of_another_kind(values, kind, message):
    encoder = TableEncoder([Column("c", kind, False)])
    with pytest.raises(ValueError, match=message) as caught:
        encoder.transform(pd.DataFrame({"c": values}))
    assert "secret" not in str(caught.value)


def test_columns_that_cannot_be():
    many = pd.Series([f"text {i}" for i in range(MOST_CATEGORIES + 1)], name="remark")
    with pytest.raises(ValueError, match=r"'remark' has 51 different texts.*--drop 'remark'"):
        describe(many)
    describe(many[:-1])
    with pytest.raises(ValueError, match="'boxes' holds neither"):
        describe(pd.Series([[1], [2]], name="boxes"))
    with pytest.raises(ValueError, match="'waves' holds neither"):
        describe(pd.Series([1j, 2j], name="waves"))
    with pytest.raises(ValueError, match="would become 'a=b'"):
        TableEncoder([Column("a=b", "number", False), Column("a", "category", False, 0.0, ("b",))])
    encoder, _ = encoded(pd.DataFrame({"a": [1, 2], "b": [1, 2], "c": [1, 2]}))
    with pytest.raises(ValueError, match=r"lacks columns .* 'a', 'c'"):
        encoder.transform(pd.DataFrame({"b": [1]}))


def test_scikit_learn_learns_the_same():
    """The transformers that are made from a description are those that scikit-learn would fit."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    table = houses()[["size", "age", "town"]]
    fitted = make_column_transformer(
        (SimpleImputer(strategy="median", add_indicator=True), ["size", "age"]),
        (OneHotEncoder(sparse_output=False), ["town"]),
    )
    _, X = encoded(table)
    table = table.assign(town=table["town"].astype(object).where(table["town"].notna(), None))
    np.testing.assert_array_equal(X.to_numpy(), fitted.fit_transform(table))


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet", "t.pq", "t.feather"])
def test_files(name, tmp_path):
    table = houses()
    tables.write(table, tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    again = tables.read(tmp_path / name)
    pd.testing.assert_frame_equal(encoded(again)[1], encoded(table)[1])


def test_a_folder_of_parquet(tmp_path):
    table = houses()
    for i in range(3):
        table[i::3].to_parquet(tmp_path / f"part-{i}.parquet")
    again = tables.read(tmp_path)
    assert sorted(again["size"]) == sorted(table["size"])
    assert again.index.tolist() == list(range(len(table)))


@pytest.mark.parametrize(("name", "content", "message"), [
    ("t.xlsx", b"x", r"t.xlsx: tables are files that end in \.csv"),
    ("t.csv", b"", "t.csv cannot be read: No columns"),
    ("t.csv", b"a,b\n", "t.csv has no rows"),
    ("t.csv", b"a,b\n1,2\n1,2,3,secret\n", "t.csv cannot be read"),
    ("t.csv", b"a\n\xff\xfe\n", "t.csv cannot be read"),
    ("t.csv.gz", gzip.compress(b"a,b\n1,2\n" * 50, mtime=0)[:-9], "t.csv.gz cannot be read"),
    ("t.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)[:10] + b"secret", "t.csv.gz cannot be read"),
    ("t.parquet", b"PAR1 no", "t.parquet cannot be read"),
    ("t.feather", b"nothing", "t.feather cannot be read"),
])  # fmt: skip
def test_files_that_are_none(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        tables.read(tmp_path / name)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match=r"nowhere\.csv does not exist"):
        tables.read(tmp_path / "nowhere.csv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"folder without \.parquet"):
        tables.read(tmp_path / "folder")


def test_what_pandas_wrote_beside_the_columns_is_not_believed(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.0]})
    tables.write(table, tmp_path / "t.feather")
    data = (tmp_path / "t.feather").read_bytes()
    assert b"float64" in data
    (tmp_path / "t.feather").write_bytes(data.replace(b"float64", b"float65"))
    pd.testing.assert_frame_equal(tables.read(tmp_path / "t.feather"), table)


def test_an_index_is_not_a_column(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}, index=pd.Index([7, 9], name="key"))
    table.to_parquet(tmp_path / "t.parquet")
    read = tables.read(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read, table.reset_index(drop=True), check_dtype=False)


def test_texts_that_lie_outside_the_file(tmp_path):
    path = tmp_path / "t.feather"
    pd.DataFrame({"a": ["one", "three"]}).to_feather(path, compression="uncompressed")
    data = path.read_bytes()
    places = [np.array([0, 3, 8], dtype=dtype).tobytes() for dtype in ("<i4", "<i8")]
    wrong = [np.array([0, 3, 2**30], dtype=dtype).tobytes() for dtype in ("<i4", "<i8")]
    which = 1 if places[1] in data else 0
    assert places[which] in data
    path.write_bytes(data.replace(places[which], wrong[which]))
    with pytest.raises(ValueError, match=r"t\.feather cannot be read"):
        tables.read(path)


def test_a_table_for_which_there_is_no_memory(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")

    def reader(path):
        raise MemoryError("malloc of size 366503875968 failed")

    monkeypatch.setitem(tables._READERS, ".csv", reader)
    with pytest.raises(MemoryError, match=r"t\.csv cannot be read, for want of memory"):
        tables.read(tmp_path / "t.csv")


def test_repeated_names(tmp_path):
    pd.DataFrame([[1, 2], [3, 4]], columns=[1, "1"]).to_csv(tmp_path / "t.csv", index=False)
    assert list(tables.read(tmp_path / "t.csv").columns) == ["1", "1.1"]  # pandas tells them apart


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    tables.write(pd.DataFrame({"a": [1]}), tmp_path / "t.parquet")
    before = (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(Exception, match=r"complex|convert|type"):
        tables.write(pd.DataFrame({"a": [1j]}), tmp_path / "t.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]
    assert (tmp_path / "t.parquet").read_bytes() == before


# ---- models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "task"), [
    ([1.5, 2.5, 3.0], "regression"), ([3, 4, 5], "regression"), ([-1, 0, 1], "regression"),
    ([0, 1, 5, 2], "counts"), ([0.0, 3.0, 2.0], "counts"), ([0, 1, 1], "classification"),
    (["a", "b", "c"], "classification"), ([True, False, True], "classification"),
    (pd.Categorical([1, 2, 3]), "classification"), ([1.0, 2.0, 1.0], "classification"),
])  # fmt: skip
def test_the_task_is_told_from_the_target(values, task):
    assert tables.task_of(pd.Series(values, name="t"))[0] == task


def test_targets_that_will_not_do():
    with pytest.raises(ValueError, match="'t' is a date"):
        tables.task_of(pd.Series(pd.to_datetime(["2020-01-01"]), name="t"))
    table = houses()
    with pytest.raises(ValueError, match=r"no column 'prize'. It has: size, age"):
        TableModel.fit(table, "prize")
    with pytest.raises(ValueError, match="no column 'nothing'"):
        TableModel.fit(table, "price", drop=["nothing"])
    with pytest.raises(ValueError, match="'dear' is not numbers"):
        TableModel.fit(table, "dear", task="regression")
    with pytest.raises(ValueError, match=r"'price' has 200 values that are no counts .*row 1\)"):
        TableModel.fit(table, "price", task="counts")
    with pytest.raises(ValueError, match="missing in every row"):
        TableModel.fit(table.assign(price=np.nan), "price")
    with pytest.raises(ValueError, match="no column to learn from"):
        TableModel.fit(table[["price", "country"]], "price")
    with pytest.raises(ValueError, match="'id' has 600 different values"):
        TableModel.fit(pd.DataFrame({"id": np.arange(600), "x": np.arange(600)}), "id",
                       task="classification")  # fmt: skip


@pytest.mark.parametrize(("target", "task"), [
    ("price", "regression"), ("dear", "classification"), ("visits", "counts"),
    ("garden", "classification"), ("town", "classification"),
])  # fmt: skip
def test_saved_whole(target, task, tmp_path):
    table = houses()
    more = {"n_inducing": 10} if task != "regression" else {}
    model = TableModel.fit(table, target, **QUICK, **more)
    assert model.task == task
    assert not any(
        name == target or name.startswith(f"{target}=") for name in model.encoder.outputs
    )
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    new = houses(40, seed=1)
    one, other = model.predict(new), again.predict(new[new.columns[::-1]].assign(extra="e"))
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert again.notes == model.notes
    assert (again.target, again.task) == (target, task)
    there = new[target].notna()
    np.testing.assert_array_equal(model.targets(new[there]), again.targets(new[there]))
    if task == "classification":
        p = one.filter(like="probability_").to_numpy()
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
        names = [name.removeprefix("probability_") for name in one.columns[1:]]
        assert [names[i] for i in p.argmax(axis=1)] == one["class"].astype(str).tolist()
    else:
        assert list(one.columns) == ["mean", "std", "lower", "upper"]
        lower, upper = model.estimator.predict_interval(model.inputs(new), coverage=0.95)
        np.testing.assert_array_equal(one["lower"], lower)
        np.testing.assert_array_equal(one["upper"], upper)


def test_rows_without_a_target_and_words():
    table = houses()
    table.loc[:9, "price"] = np.nan
    model = TableModel.fit(table, "price", drop=["dear", "visits"], **QUICK)
    assert len(model.estimator.labels_) == 190
    assert "10 rows without a target are left out" in model.notes
    assert any(note.startswith("price: the target, for regression") for note in model.notes)
    for name in ("size", "age", "town", "sold", "garden", "country"):
        assert sum(note.startswith(f"{name}: ") for note in model.notes) == 1
    assert list(model.estimator.feature_names_in_) == model.encoder.outputs
    new = houses(20, seed=1).assign(town="Rome")
    with pytest.warns(UserWarning, match=r"'town' has 1 value .* in 20 of its rows"):
        model.predict(new)
    with pytest.raises(ValueError, match=r"lacks a column .* 'sold'"):
        model.predict(new.drop(columns="sold"))
    with pytest.raises(ValueError, match="below 1"):
        model.predict(new, coverage=1.0)


def test_forged_columns_are_refused(tmp_path):
    from test_persistence import forge

    TableModel.fit(houses(60), "price", **QUICK).save(tmp_path)
    whole = (tmp_path / "model.json").read_text()
    for at, value in [
        (("columns", 0, "kind"), "code"), (("columns", 0, "name"), 3), (("columns", 2), None),
        (("columns", 2, "categories"), ["Ulm"] * 3), (("columns", 2, "categories"), [1, 2]),
        (("columns", 0, "fill"), "x"), (("columns",), []), (("columns", 1, "has_missing"), False),
        (("task",), "regress"), (("task",), "classification"), (("target",), 1), (("notes",), [1]),
        (("estimator",), None), (("estimator", "class"), "TableModel"),
        (("estimator", "class"), "ExpertGPClassifier"), (("estimator", "class"), "builtins.eval"),
    ]:  # fmt: skip
        (tmp_path / "model.json").write_text(whole)

        def change(record, at=at, value=value):
            for key in at[:-1]:
                record = record[key]
            record[at[-1]] = value

        forge(tmp_path, change)
        with pytest.raises(ValueError, match=r"model\.json"):
            load(tmp_path)
