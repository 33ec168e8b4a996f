"""Files that are not read, told for what they are."""

import base64

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from shardkit.errors import BadInputError, DamagedFileError, UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from tests.support.files.source_makers import read_all


class Keys(encryption.KmsClient):
    """Hands out keys that are wrapped by nothing but their spelling."""

    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


def write_encrypted(path, **settings):
    factory = encryption.CryptoFactory(Keys)
    config = encryption.EncryptionConfiguration(footer_key="k", **settings)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    table = pa.table({"a": ["text"] * 1_000, "b": list(range(1_000))})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def infer(path, **options):
    settings = SourceOptions(**options)
    files = list_inputs([str(path)]).files
    return choose_source(files, settings).infer(files, settings)


@pytest.mark.parametrize("name", ["a.parquet", "a.parquet.encrypted", "a"])
@pytest.mark.parametrize("has_plain_footer", [False, True])
def test_encrypted_parquet_is_called_that(tmp_path, name, has_plain_footer):
    write_encrypted(tmp_path / name, plaintext_footer=has_plain_footer, column_keys={"k": ["a", "b"]})
    head = (tmp_path / name).read_bytes()[:4]
    assert head == (b"PAR1" if has_plain_footer else b"PARE")
    with pytest.raises(DamagedFileError, match="the Parquet file is encrypted"):
        infer(tmp_path / name)


@pytest.mark.parametrize("word", ["PARE, the short one", "PAR1abc"])
def test_a_text_may_begin_with_the_word(tmp_path, word):
    (tmp_path / "a.csv").write_text(f"{word},x\n1,2\n")
    assert infer(tmp_path / "a.csv")


def test_avro_is_known_by_its_first_bytes(tmp_path):
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    for name in ("a.avro12", "a.csv", "a"):
        with (tmp_path / name).open("wb") as file:
            fastavro.writer(file, schema, [{"a": 1}])
        assert [f.name for f in infer(tmp_path / name)] == ["a"]


def test_avro_before_its_first_stable_format(tmp_path):
    (tmp_path / "a.avro12").write_bytes(b"Obj\0\xdb\xe3\x84\x19'\x16~{" + b"corftfdfvxvhyrxrktjjrfja" * 10)
    with pytest.raises(UsageError, match=r"an Avro file of a version before 1\.3"):
        infer(tmp_path / "a.avro12")


def test_array_record_is_called_that(tmp_path):
    signature = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")
    (tmp_path / "a.array_record-00000-of-00001").write_bytes(signature.ljust(64 * 1024, b"\0") + b"records")
    with pytest.raises(UsageError, match="ArrayRecord") as caught:
        infer(tmp_path / "a.array_record-00000-of-00001")
    assert "--encoding" not in str(caught.value)


def test_a_wrong_schema_is_not_called_damage(tmp_path):
    table = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    pq.write_table(table, tmp_path / "a.parquet", compression="none", store_schema=False)
    content = (tmp_path / "a.parquet").read_bytes()
    # In the footer: the repetition of the key, which is required, becomes optional.
    required = b"\x25\x00\x18\x03key"
    assert content.count(required) == 1
    (tmp_path / "a.parquet").write_bytes(content.replace(required, b"\x25\x02\x18\x03key"))
    with pytest.raises(BadInputError, match="Map keys must be annotated as required") as caught:
        infer(tmp_path / "a.parquet")
    assert "the schema of the Parquet file is not valid" in str(caught.value)
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize("text", ["1 12:30 to Rome\n2 13:30 to Oslo\n", "1 2:1\n", "1 2 3\n4 5 6\n", "a 1:2\nb 3:4\n"])
def test_other_lines_of_numbers_are_text(tmp_path, text):
    (tmp_path / "notes").write_text(text)
    assert choose_source(list_inputs([str(tmp_path)]).files, SourceOptions()).format in ("text", "csv")


ADULT = (
    b"39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Unmarried, White, Male, 2174, 0, 40, US, <=50K",
    b"50, Self-emp, 83311, Bachelors, 13, Married, Exec-managerial, Husband, White, Male, 0, 0, 13, US, <=50K",
    b"38, Private, 215646, HS-grad, 9, Divorced, Handlers-cleaners, Not-in-family, White, Male, 0, 0, 40, US, <=50K",
    b"53, Private, 234721, 11th, 7, Married-civ-spouse, Handlers-cleaners, Husband, Black, Male, 0, 0, 40, US, <=50K",
)


@pytest.mark.parametrize("end", [b"\n", b"\n\n", b""])
@pytest.mark.parametrize("number", [3, 4])
def test_few_lines_of_a_table_without_a_header_lose_no_row(tmp_path, number, end):
    (tmp_path / "adult.data").write_bytes(b"\n".join(ADULT[:number]) + end)
    source = choose_source(list_inputs([str(tmp_path)]).files, SourceOptions())
    assert source.format == "csv"
    found = read_all(source, tmp_path)
    assert len(found.features) == 15
    assert [row["column_1"] for row in found.rows] == [39, 50, 38, 53][:number]
