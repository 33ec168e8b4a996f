"""Every kind of image and sound is found by content, kept as it is, and noted where TensorFlow does not decode it."""

import io

import numpy as np
import pytest
from PIL import Image

from shardkit.dataset.open import open_dataset
from tests.support.in_process import read_rows

soundfile = pytest.importorskip("soundfile")
pytestmark = pytest.mark.full

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8))
SINE = (0.5 * np.sin(np.arange(800) / 9)).astype(np.float32)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.jpg", "b.png", "c.webp", "d.gif", "e.bmp", "f.tif", "g.ppm"):
        PICTURE.save(folder / name)
    (folder / "h.pgm").write_text("P2\n# by hand\n2 1\n9\n0 9\n")
    return folder


def test_images_of_all_kinds_are_kept_or_stored_as_png(run, images, tmp_path):
    code, _, err = run("convert", images, tmp_path / "kept")
    assert code == 0, err
    assert "TensorFlow does not decode BMP of fewer than 24 bits, TIFF, PNM: --image-format png" in err
    rows = {r["filename"]: r for r in read_rows(open_dataset(str(tmp_path / "kept")), "train")}
    assert {name: row["image"] for name, row in rows.items()} == {p.name: p.read_bytes() for p in images.iterdir()}
    code, _, err = run("convert", images, tmp_path / "png", "--image-format", "png")
    assert code == 0, err
    assert "TensorFlow" not in err
    assert "with several frames or pages, the first is stored" in err
    for row in read_rows(open_dataset(str(tmp_path / "png")), "train"):
        found = Image.open(io.BytesIO(row["image"]))
        expected = Image.open(images / row["filename"])
        assert found.format == "PNG"
        assert np.array_equal(np.asarray(found.convert("RGB")), np.asarray(expected.convert("RGB"))), row["filename"]


def test_images_that_are_cut_off_end_the_conversion_or_are_skipped(run, images, tmp_path):
    for path in [p for p in images.iterdir() if p.suffix != ".pgm"]:
        (images / f"cut-{path.name}").write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    code, _, err = run("convert", images, tmp_path / "out")
    assert code == 3
    assert "cut-" in err
    assert "cut off" in err
    code, _, err = run("convert", images, tmp_path / "out", "--on-bad-record", "skip", "--max-bad", "7")
    assert code == 0, err
    names = [r["filename"] for r in read_rows(open_dataset(str(tmp_path / "out")), "train")]
    assert sorted(names) == sorted(p.name for p in images.iterdir() if not p.name.startswith("cut-"))


def test_sounds_of_all_kinds_are_found_by_content(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for kind in ("WAV", "RIFX", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC", "OGG"):
        settings = {"format": "WAV", "endian": "BIG"} if kind == "RIFX" else {"format": kind}
        soundfile.write(folder / f"{kind}.wav", SINE, 8000, **settings)
    code, _, err = run("convert", folder, tmp_path / "out", "--audio", "samples")
    assert code == 0, err
    for row in read_rows(open_dataset(str(tmp_path / "out")), "train"):
        assert np.abs(np.array(row["audio"]) - SINE).max() < (0.1 if row["filename"] == "OGG.wav" else 1e-4)
