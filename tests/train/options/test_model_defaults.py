"""Which model, which size and which defaults follow from names and features."""

from __future__ import annotations

import keras
import pytest

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import UsageError
from shardkit.features import make_feature
from train.options.model_defaults import APPLICATIONS, choose_defaults, choose_image_size, choose_model, is_image_array

pytestmark = pytest.mark.full

AGE = make_feature("age", "int64")
CITY = make_feature("city", "string")
PHOTO = make_feature("photo", "bytes", media_type="image/jpeg")
PIXELS = make_feature("pixels", "uint8", (28, 28))
SOUND = make_feature("sound", "bytes", media_type="audio/wav")


def column(num_distinct: int, **settings: object) -> FeatureStatistics:
    known = {"count": 100, "num_nulls": 0, "num_values": 100, "num_distinct": num_distinct, **settings}
    return FeatureStatistics(**known)  # type: ignore[arg-type]


STATISTICS = {"age": column(30, mean=1.0), "city": column(10), "essay": column(99)}


def test_a_model_is_chosen_by_what_there_is_to_learn_from() -> None:
    assert choose_model(None, (AGE, PHOTO), STATISTICS) == "image"
    assert choose_model(None, (PIXELS,), {}) == "image"
    assert choose_model(None, (SOUND, AGE), STATISTICS) == "sequence"
    assert choose_model(None, (AGE, CITY), STATISTICS) == "tabular"
    essay = make_feature("essay", "string")
    assert choose_model(None, (essay,), STATISTICS) == "text"
    assert choose_model(None, (essay, AGE), STATISTICS) == "tabular"


def test_a_list_of_any_length_is_a_sequence_where_a_table_finds_nothing() -> None:
    lists = {name: make_feature(name, dtype, (None,)) for name, dtype in (("audio", "float32"), ("ids", "int64"))}
    known = {**STATISTICS, **{name: column(90, mean=0.0) for name in lists}}
    for found in lists.values():
        assert choose_model(None, (found,), known) == "sequence"
        assert choose_model(None, (found, AGE), known) == "tabular"
    assert choose_model(None, tuple(lists.values()), known) == "tabular"
    assert choose_model(None, (lists["ids"], make_feature("essay", "string")), known) == "tabular"
    beside = [make_feature(name, "int64") for name in ("sample_rate", "num_frames", "channels")]
    known |= {f.name: column(30, mean=1.0) for f in beside}
    assert choose_model(None, (*beside, lists["audio"], CITY), known) == "sequence"


def test_a_matrix_of_numbers_is_an_image_only_if_asked_for() -> None:
    measured = make_feature("m", "float32", (16, 16))
    assert choose_model(None, (measured,), {"m": column(9, mean=1.0)}) == "tabular"
    assert is_image_array(measured)
    assert is_image_array(make_feature("m", "uint8", (32, 32, 3)))
    for shape in ((28,), (4, 40), (28, 28, 2), (2, 28, 28), (None,), ()):
        assert not is_image_array(make_feature("m", "uint8", shape))


def test_a_wrong_name_lists_near_ones() -> None:
    assert choose_model("a.py:build", (AGE,), {}) == "a.py:build"
    assert choose_model("MobileNetV3Small", (PHOTO,), {}) == "MobileNetV3Small"
    with pytest.raises(UsageError, match="near ones are EfficientNetB0"):
        choose_model("efficientnet_b0", (PHOTO,), {})
    with pytest.raises(UsageError, match=r"tabular, image, text, sequence, a name from keras\.applications"):
        choose_model("quux", (AGE,), {})


def test_the_names_are_those_of_keras() -> None:
    known = {n for n in dir(keras.applications) if n[0].isupper() and callable(getattr(keras.applications, n))}
    assert set(APPLICATIONS) == known


def test_sizes_and_defaults_follow_from_the_model() -> None:
    assert choose_image_size(None, "image", (PHOTO,)) == 96
    assert choose_image_size(None, "image", (PIXELS,)) == 28
    assert choose_image_size(20, "image", (PIXELS,)) == 20
    assert choose_image_size(None, "VGG16", (PHOTO,)) == 224
    assert choose_image_size(None, "Xception", (PHOTO,)) == 299
    for model in ("image", "MobileNetV2"):
        assert choose_defaults(model, (PIXELS,)).epochs < choose_defaults(model, (PHOTO,)).epochs


def test_small_arrays_are_enlarged_no_more_than_a_named_model_needs() -> None:
    large = make_feature("pixels", "uint8", (300, 200, 3))
    found = {model: choose_image_size(None, model, (PIXELS,)) for model in ("MobileNetV2", "Xception", "InceptionV3")}
    assert found == {"MobileNetV2": 32, "Xception": 71, "InceptionV3": 75}
    assert choose_image_size(None, "MobileNetV2", (large,)) == 224
    assert choose_image_size(64, "MobileNetV2", (PIXELS,)) == 64


@pytest.mark.parametrize("model", ["tabular", "text", "sequence"])
def test_a_size_of_images_is_refused_where_there_are_none(model: str) -> None:
    with pytest.raises(UsageError, match=f"--image-size is for images, and the model {model} reads none"):
        choose_image_size(64, model, (AGE,))
    assert choose_defaults("a.py:build", (AGE,)).weight_decay == 0
