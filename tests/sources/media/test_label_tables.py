"""Tables of labels beside images, and files and labels that do not go together."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.media.image_source import ImageSource
from shardkit.sources.media.label_tables import match_names
from shardkit.sources.media.labels import label_files, labels_beside, without_label_files
from tests.support.examples import draws
from tests.support.files.label_makers import fails, images, picture, read, text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", "age,filename,kind\n3,a.png,cat\n5,b.png,dog\n"),
        ("l.jsonl", '{"age": 3, "image": "a.png", "kind": "cat"}\n{"age": 5, "image": "b.png", "kind": "dog"}\n'),
        ("l.csv", "name,age,kind\na.png,3,cat\nb.png,5,dog\n"),
        ("l.csv", "path,age,kind\n/some/where/a.png,3,cat\n/some/where/b.png,5,dog\n"),
        ("l.csv", "id,age,kind\na,3,cat\nb,5,dog\n"),
        ("l.json", '[{"age": 3, "file": "a.png", "kind": "cat"}, {"age": 5, "file": "b.png", "kind": "dog"}]'),
        ("l.json", '[\n  {\n    "age": 3,\n "file": "a", "kind": "cat"},\n {"age": 5, "file": "b", "kind": "dog"}\n]'),
    ],
)
def test_tables(tmp_path, name, content):
    found, rows, notes, _ = read(images(tmp_path, "a.png", "b.png"), text(tmp_path, name, content))
    assert found["age"].dtype == "int64"
    assert "label" not in found
    assert {n: (r["age"], r["kind"]) for n, r in rows.items()} == {"a.png": (3, "cat"), "b.png": (5, "dog")}
    assert notes == ()


def test_rows_stay_with_their_images_in_every_batch(tmp_path):
    names = [f"{i:03}.png" for i in range(60)]
    folder = images(tmp_path, *names)
    shuffled = random.Random(1).sample(names, 60)
    labels = text(tmp_path, "l.csv", "file,n\n" + "".join(f"{n},{int(n[:3])}\n" for n in shuffled))
    source = ImageSource(split_bytes=1000, batch_bytes=200)
    _, rows, _, _ = read(folder, labels, source)
    assert {n: r["n"] for n, r in rows.items()} == {n: int(n[:3]) for n in names}


def test_several_rows_an_image_become_lists(tmp_path):
    content = "filename,width,class,xmin\na.png,7,cat,1\nb.png,7,dog,2\na.png,7,dog,3\n"
    found, rows, notes, _ = read(images(tmp_path, "a.png", "b.png"), text(tmp_path, "l.csv", content))
    assert found["xmin"].shape == (None,)
    assert rows["a.png"]["class"] == ["cat", "dog"]
    assert rows["a.png"]["xmin"] == [1, 3]
    assert rows["b.png"]["xmin"] == [2]
    assert rows["a.png"]["labels/width"] == [7, 7]
    assert (rows["a.png"]["width"], rows["a.png"]["height"]) == (7, 5)
    assert any("several rows" in n for n in notes)
    assert any("'labels/width'" in n for n in notes)
    text(tmp_path, "l.csv", "filename,xmin\na.png,1\na.png,\n")
    assert "row 2" in fails(tmp_path / "images", tmp_path / "l.csv")


def test_what_does_not_go_together_is_counted(tmp_path):
    folder = images(tmp_path, "a.png", "b.png", "c.png")
    found, rows, notes, _ = read(folder, text(tmp_path, "l.csv", "file,n\na.png,1\nx.png,2\ny.png,3\n"))
    assert found["n"].nullable
    assert [rows[n]["n"] for n in ("a.png", "b.png", "c.png")] == [1, None, None]
    assert "2 images have no label: 'b.png', 'c.png'" in notes
    assert "2 labels have no file among the inputs: 'x.png', 'y.png'" in notes
    message = fails(folder, text(tmp_path, "l.csv", "file,n\nx.png,2\n"))
    assert "none of the labels" in message
    assert "'x.png'" in message


def test_names_that_fit_several_files_or_labels(tmp_path):
    folder = images(tmp_path, "1/a.png", "2/a.png")
    assert "belongs to 2 files" in fails(folder, text(tmp_path, "l.csv", "file,n\na.png,1\n"))
    _, rows, _, _ = read(folder, text(tmp_path, "l.csv", "file,n\n2/a.png,1\n1/a.png,2\n"))
    assert [rows[n]["n"] for n in ("1/a.png", "2/a.png")] == [2, 1]
    other = images(tmp_path / "other", "a.png")
    assert "several labels are for 'a.png'" in fails(other, text(tmp_path, "l.csv", "file,n\nx/a.png,1\ny/a.png,2\n"))


def test_a_label_of_another_folder_is_not_taken(tmp_path):
    folder = images(tmp_path, "train/a.png", "val/b.png")
    _, rows, notes, _ = read(folder, text(tmp_path, "l.csv", "file,n\ntrain/a.png,1\ntrain/b.png,2\n"))
    assert {name: row["n"] for name, row in rows.items()} == {"train/a.png": 1, "val/b.png": None}
    assert "1 image has no label: 'val/b.png'" in notes
    assert "1 label has no file among the inputs: 'train/b.png'" in notes


def test_an_image_without_label_does_not_claim_that_of_another_folder(tmp_path):
    folder = images(tmp_path, "train/a.png", "train/b.png", "val/a.png", "val/a.bmp")
    _, rows, _, _ = read(folder, text(tmp_path, "l.csv", "file,n\ntrain/a.png,1\ntrain/b.png,2\nval/a.png,3\n"))
    assert {name: row["n"] for name, row in rows.items()} == {
        "train/a.png": 1,
        "train/b.png": 2,
        "val/a.png": 3,
        "val/a.bmp": None,
    }


@pytest.mark.parametrize("root", ["", "/data/set/", "http://host/", "x/"])
@pytest.mark.parametrize("end", [".png", ""])
def test_labels_with_more_folders_than_the_files(root, end):
    names = ["train/a.png", "val/a.png", "val/b.png"]
    labels = [f"{root}{n.removesuffix('.png')}{end}" for n in reversed(names)]
    assert match_names(names, labels, "l.csv", "images").positions.tolist() == [2, 1, 0]
    assert match_names([f"{root}{n}" for n in names], ["a", *labels], "l", "images").positions.tolist() == [3, 2, 1]


def test_folders_are_looked_past_where_none_agrees():
    matching = match_names(["cats/a.png", "dogs/b.png"], ["img/b.png", "img/a.png"], "l.csv", "images")
    assert matching.positions.tolist() == [1, 0]


@settings(max_examples=draws(200), deadline=None)
@given(st.data())
def test_every_file_gets_its_own_label(data):
    names = data.draw(st.lists(st.text("ab.c/", min_size=1, max_size=6), min_size=1, max_size=8, unique=True))
    labels = data.draw(st.permutations(names))
    try:
        matching = match_names(names, labels, "l.csv", "images")
    except UsageError:
        plain = [n.removeprefix("./") for n in names]
        assert len(set(plain)) < len(plain)
        return
    assert [labels[i] for i in matching.positions] == names
    assert matching.notes == ()


@pytest.mark.parametrize("content", ["x/a.png,cat\nb.png,dog\n", "b.png dog\na.png cat\n"])
def test_tables_without_a_header_line(tmp_path, content):
    _, rows, _, _ = read(images(tmp_path, "a.png", "b.png"), text(tmp_path, "l.txt", content))
    assert {name: row["column_2"] for name, row in rows.items()} == {"a.png": "cat", "b.png": "dog"}


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("index,image_name,label\n0,1.png,b\n1,0.png,a\n", "image_name"),
        (",id,label\n9,0,a\n0,1,b\n", "id"),
        ("label,picture\na,0\nb,1.png\n", "picture"),
        ("id,again,label\n0,0,a\n1,1,b\n", None),
        (",nr,label\n1,0,a\n2,1,b\n", "nr"),
        (",nr,label\n0,1,b\n1,0,a\n", "nr"),
        ("Unnamed: 0,nr,label\n0,1,b\n1,0,a\n", "nr"),
    ],
)
def test_the_column_that_names_most_files_joins_the_labels(tmp_path, content, key):
    _, rows, notes, _ = read(images(tmp_path, "0.png", "1.png"), text(tmp_path, "l.csv", content))
    assert {name: row["label"] for name, row in rows.items()} == {"0.png": "a", "1.png": "b"}
    assert [f"column '{key}' of the labels names the files"] * (key is not None) == [
        n for n in notes if "names the" in n
    ]


def test_names_that_a_mac_wrote_are_the_same(tmp_path):
    folder = images(tmp_path, "\u00c4pfel.png", "b.png")
    labels = text(tmp_path, "l.csv", "file,label\nA\u0308pfel.png,x\nb.png,y\n")
    assert {name: row["label"] for name, row in read(folder, labels)[1].items()} == {
        "\u00c4pfel.png": "x",
        "b.png": "y",
    }


def test_numbers_that_are_names_of_files_by_chance_join_nothing(tmp_path):
    folder = images(tmp_path, *(f"{i}.png" for i in range(10)))
    classes = text(tmp_path, "l.csv", "id,label\n" + "".join(f"{i},{i % 10}\n" for i in range(5, 40)))
    assert {name: row["label"] for name, row in read(folder, classes)[1].items() if row["label"] is not None} == {
        f"{i}.png": i for i in range(5, 10)
    }
    named = text(tmp_path, "m.csv", "filename,label\n" + "".join(f"mnist_{i}.png,{i}\n" for i in range(10)))
    assert "none of the labels belongs" in fails(folder, named)
    ages = text(tmp_path, "n.csv", "img_id,age\n" + "".join(f"{i + 7},{i}\n" for i in range(10)))
    assert [row["age"] for name, row in read(folder, ages)[1].items() if name == "7.png"] == [0]


def test_columns_that_name_different_files_are_refused_and_empty_labels(tmp_path):
    folder = images(tmp_path, "0.png", "1.png")
    swapped = text(tmp_path, "l.csv", "a,b,label\n0.png,1.png,x\n1.png,0.png,y\n")
    assert "columns 'a' and 'b' name 2 files each" in fails(folder, swapped)
    numbers = text(tmp_path, "n.csv", "patient,scan,label\n0,1,x\n1,0,y\n")
    assert "columns 'patient' and 'scan' name 2 files each" in fails(folder, numbers)
    named = text(tmp_path, "m.csv", "a,filename,label\n0.png,1.png,x\n1.png,0.png,y\n")
    assert {name: row["label"] for name, row in read(folder, named)[1].items()} == {"1.png": "x", "0.png": "y"}
    assert "empty for all files" in fails(folder, text(tmp_path, "n.csv", "file,label\n0.png,\n1.png,\n"))
    assert "empty for all files" in fails(folder, text(tmp_path, "o.csv", 'file,label\n0.png,""\n1.png," "\n'))


def test_tables_that_are_no_labels(tmp_path):
    folder = images(tmp_path, "a.png")
    assert "holds no names" in fails(folder, text(tmp_path, "l.csv", "x,y\n1.5,2\n"))
    assert "no name of a file" in fails(folder, text(tmp_path, "l.csv", "file,y\na.png,2\n,3\n"))
    assert "there are no labels in l.csv" in fails(folder, text(tmp_path, "l.csv", ""))
    assert "names of files and nothing else" in fails(folder, text(tmp_path, "l.txt", "file\na.png\n"))
    assert "no XML files" in fails(folder, images(tmp_path / "more", "x.png", "y.png"))
    assert "no kind that is read" in fails(folder, images(tmp_path / "one", "x.png") / "x.png")
    assert "line 3" in fails(folder, text(tmp_path, "l.csv", "file,y\na.png,2\nb.png\n"), kind=BadInputError)
    with pytest.raises(UsageError):
        read(folder, tmp_path / "absent.csv")


def test_labels_among_the_images_are_no_images(tmp_path):
    folder = images(tmp_path, "a.png")
    labels = text(folder, "labels.csv", "file,n\na.png,1\n")
    files, options = list_inputs([str(folder)]).files, SourceOptions(labels=str(labels))
    assert len(files) == 2
    assert [f.name for f in without_label_files(files, options)] == ["a.png"]
    assert without_label_files(files, SourceOptions()) == files
    assert [f.name for f in label_files(options)] == ["labels.csv"]


def test_labels_that_do_not_fit_a_schema_are_rejected(tmp_path):
    folder = images(tmp_path, "a.png", "b.png")
    labels = text(tmp_path, "l.csv", "file,n\na.png,1\nb.png,many\n")
    source, options = ImageSource(), SourceOptions(labels=str(labels), tolerates_bad_rows=True)
    files = list_inputs([str(folder)]).files
    from shardkit.conversion.inputs.schema_file import Schema, apply_schema

    features = apply_schema(source.infer(files, options), Schema(features={"n": "int64"}))
    (part,) = source.read(source.split(files, options)[0], files, features, options)
    assert part.batch["n"].to_pylist() == [1]
    (bad,) = part.rejected
    assert files[bad.file_index].name == "b.png"
    assert bad.raw == picture()
    assert "'many'" in bad.reason


def test_objects_of_a_file_stand_in_one_line(tmp_path):
    folder = images(tmp_path, "a.png", "b.png")
    line = '{"file_name": "a.png", "objects": {"bbox": [[0, 0, 1, 1]], "categories": [0]}}\n'
    text(folder, "metadata.jsonl", line + line)
    files, options = list_inputs([str(folder)]).files, SourceOptions()
    beside = labels_beside(files, str(folder), options)
    with pytest.raises(BadInputError, match="2 lines name 1 files"):
        ImageSource().infer(beside.files, SourceOptions(labels=beside.labels))


def test_objects_may_be_one_each_in_place_of_lists(tmp_path):
    folder = images(tmp_path, "a.png", "b.png")
    lists = '{"file_name": "a.png", "objects": {"bbox": [[0, 0, 1, 1], [1, 1, 2, 1]], "categories": [4, 2]}}'
    boxes = '{"bbox": [0, 0, 1, 1], "category": 4}, {"bbox": [1, 1, 2, 1], "category": 2}'
    each = f'{{"file_name": "a.png", "objects": [{boxes}]}}'
    found = []
    for line in (lists, each):
        text(folder, "metadata.jsonl", f'{line}\n{{"file_name": "b.png"}}\n')
        files = list_inputs([str(folder)]).files
        beside = labels_beside(files, str(folder), SourceOptions())
        options, source = SourceOptions(labels=beside.labels), ImageSource()
        features = source.infer(beside.files, options)
        (part,) = source.read(source.split(beside.files, options)[0], beside.files, features, options)
        found.append((features, part.batch.select(["boxes", "box_labels"]).to_pylist()))
    assert found[0] == found[1]
    assert found[0][1][0] == {"boxes": [0, 0, 1, 1, 1, 1, 3, 2], "box_labels": [4, 2]}


def test_objects_that_are_no_boxes_are_refused(tmp_path):
    folder = images(tmp_path, "a.png", "b.png")
    lists = '{"file_name": "a.png", "objects": {"bbox": [[0, 0, 1, 1]], "categories": [4]}}'
    text(folder, "metadata.jsonl", f'{lists}\n{{"file_name": "b.png", "objects": [3]}}\n')
    files = list_inputs([str(folder)]).files
    beside = labels_beside(files, str(folder), SourceOptions())
    with pytest.raises(BadInputError, match="they are no object of lists"):
        ImageSource().infer(beside.files, SourceOptions(labels=beside.labels))


@pytest.mark.parametrize(
    ("files", "labels", "expected"),
    [
        (["a.jpg", "b.jpg", "a.left.jpg"], ["a.left", "b"], [-1, 1, 0]),
        (["a.jpg", "a.left.jpg"], ["a", "a.left"], [0, 1]),
        (["cat.jpg", "St.Paul.jpg"], ["St.Paul", "cat"], [1, 0]),
        (["x/a.jpg", "x/a.crop.jpg", "x/b.jpg"], ["a.crop.png", "b.png"], [-1, 0, 1]),
        (["scene1.png", "scene2.png"], ["scene1.night", "scene2"], [-1, 1]),
        (["u1.wav", "u2.wav"], ["u1.txt", "u2.mp3"], [0, 1]),
        (["x_jpg.rf.test.jpg"], ["x_jpg.rf.test"], [0]),
    ],
)
def test_what_follows_a_point_is_part_of_a_name(files, labels, expected):
    assert match_names(files, labels, "l.csv", "images").positions.tolist() == expected


def test_class_folders_that_a_named_table_replaces_are_noted(tmp_path):
    folder = images(tmp_path, "cat/a.png", "dog/b.png")
    _, _, notes, _ = read(folder, text(tmp_path, "l.csv", "file,age\na.png,3\nb.png,5\n"))
    (note,) = (note for note in notes if note.startswith("the folders cat, dog give no label beside "))
    assert note.endswith("--include '*.png' takes them as classes, without these labels")


def test_splits_without_labels_are_named_with_the_option_that_takes_the_others(tmp_path):
    folder = images(tmp_path, "train/cat/a.png", "train/dog/b.png", "val/c.png", "test/d.png")
    labels = text(tmp_path, "l.csv", "file,n\nc.png,1\n")
    _, _, notes, _ = read(folder, labels)
    (note,) = [note for note in notes if "--exclude" in note]
    assert note.startswith("2 images of train and 1 image of test have no label, since folders are no classes")
    assert "--exclude 'test/*' --exclude 'train/*' takes the others alone" in note


def test_blanks_around_the_names_of_columns_are_left_out(tmp_path):
    labels = text(tmp_path, "l.csv", "filename, age, kind\na.png, 3, big cat\nb.png, 5, dog\n")
    found, rows, notes, _ = read(images(tmp_path, "a.png", "b.png"), labels)
    assert found["age"].dtype == "int64"
    assert {n: (r["age"], r["kind"]) for n, r in rows.items()} == {"a.png": (3, "big cat"), "b.png": (5, "dog")}
    assert notes[0] == "blanks around the names and values of 'age', 'kind' of the labels are left out"


@pytest.mark.parametrize("header", ["", "image\tcaption\n"])
def test_numbers_behind_names_of_files_are_no_part_of_them(tmp_path, header):
    lines = "".join(f"{name}.jpg#{i}\tA {name} {i} .\n" for name in "ab" for i in range(2))
    folder = images(tmp_path, "a.jpg", "b.jpg")
    found, rows, _, _ = read(folder, text(tmp_path, "token.txt", f"{header}{lines}"))
    column = "caption" if header else "column_2"
    assert found[column].shape == (None,)
    assert {name: row[column] for name, row in rows.items()} == {
        f"{name}.jpg": [f"A {name} 0 .", f"A {name} 1 ."] for name in "ab"
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"aa.png": "cat", "bb.png": "dog"}', {"label": "cat"}),
        ('{"aa": 3, "bb": 5}', {"label": 3}),
        ('{"aa.png": {"kind": "cat", "age": 3}, "bb.png": {"kind": "dog", "age": 5}}', {"kind": "cat", "age": 3}),
        ('{"aa.png": [1, 2], "bb.png": []}', {"label": [1, 2]}),
    ],
)
def test_an_object_may_give_the_label_of_each_file(tmp_path, content, expected):
    _, rows, notes, _ = read(images(tmp_path, "aa.png", "bb.png"), text(tmp_path, "l.json", content))
    assert {name: rows["aa.png"][name] for name in expected} == expected
    assert all(note.startswith("classes in 'label': ") for note in notes)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("label", ("cat", "dog"), ["classes in 'label': cat 1, dog 1"]),
        ("class_id", (7, 8), ["classes in 'class_id': 7 1, 8 1"]),
        ("breed", ("cat", "dog"), ["classes in 'breed': cat 1, dog 1"]),
        ("words", ("A cat sits on a mat", "A dog runs in the rain"), []),
    ],
)
def test_classes_of_few_files_are_counted(tmp_path, column, values, expected):
    table = "".join(f"{name},{value}\n" for name, value in zip(("aa.png", "bb.png"), values, strict=True))
    _, _, notes, _ = read(images(tmp_path, "aa.png", "bb.png"), text(tmp_path, "l.csv", f"file,{column}\n{table}"))
    assert list(notes) == expected


def test_labels_below_a_root_of_their_own():
    files = ["large/a/bar/0.jpg", "large/b/bar/0.jpg"]
    matching = match_names(files, ["/b/bar/0.jpg", "/a/bar/0.jpg"], "places.txt", "images")
    assert matching.positions.tolist() == [1, 0]
