"""Lines of a name and other numbers of words, which `--labels` names, as AISHELL and VIVOS have them."""

import pytest

from shardkit.errors import UsageError
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.media.label_readers import Labelled, read_labels


def test_the_first_word_names_the_file_and_the_rest_is_one_label(tmp_path):
    path = tmp_path / "transcript.txt"
    path.write_text('S1_R0 KHI\nS1_R1 KHI "NAO DO\nS1_R2 A B C D\n')
    found = RawFile(path=str(path), name=path.name, num_bytes=path.stat().st_size, version="1")
    table = read_labels(None, (found,), Labelled([f"wav/S1_R{i}.wav" for i in range(3)], SourceOptions()))
    assert list(table.names) == ["S1_R0", "S1_R1", "S1_R2"]
    assert table.columns["transcript"].to_pylist() == ["KHI", 'KHI "NAO DO', "A B C D"]


@pytest.mark.parametrize(
    ("rows", "is_refused"),
    [
        (("we go", "they come", "all wait"), True),
        (("cat red", "dog red", "cat blue", "dog blue"), False),
        (("cat 1", "dog 2", "ox 3"), False),
        (("cat", "dog", "ox"), False),
    ],
)
def test_sentences_of_as_many_words_may_be_columns(tmp_path, rows, is_refused):
    path = tmp_path / "transcript.txt"
    path.write_text("".join(f"S1_R{i} {row}\n" for i, row in enumerate(rows)))
    found = RawFile(path=str(path), name=path.name, num_bytes=path.stat().st_size, version="1")
    labelled = Labelled([f"wav/S1_R{i}.wav" for i in range(len(rows))], SourceOptions())
    if not is_refused:
        assert len(read_labels(None, (found,), labelled).features) == len(rows[0].split())
        return
    with pytest.raises(UsageError, match="columns or sentences") as caught:
        read_labels(None, (found,), labelled)
    assert f"sentences by  sed -E 's/[[:blank:]]+/\\t/' {path} >labels.tsv" in str(caught.value.next_step)
