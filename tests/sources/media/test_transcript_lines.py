"""Lines of a name and other numbers of words, which `--labels` names, as AISHELL and VIVOS have them."""

from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.media.label_readers import Labelled, read_labels


def test_the_first_word_names_the_file_and_the_rest_is_one_label(tmp_path):
    path = tmp_path / "transcript.txt"
    path.write_text('S1_R0 KHI\nS1_R1 KHI "NAO DO\nS1_R2 A B C D\n')
    found = RawFile(path=str(path), name=path.name, num_bytes=path.stat().st_size, version="1")
    table = read_labels(None, (found,), Labelled([f"wav/S1_R{i}.wav" for i in range(3)], SourceOptions()))
    assert list(table.names) == ["S1_R0", "S1_R1", "S1_R2"]
    assert table.columns["transcript"].to_pylist() == ["KHI", 'KHI "NAO DO', "A B C D"]
