"""CSV and TSV keep the contract of sources."""

from __future__ import annotations

import csv

import pytest

from tests.support.files.format_contract import FormatContract


class TestCsv(FormatContract):
    format = "csv"
    delimiter = ","

    def row(self, number):
        # Fields of several lines, so that a cut may fall into one.
        text = ("", "é", "two\nlines", f'a{self.delimiter}"b"')[number % 4] + str(number)
        return {"n": number, "s": text, "x": None if number % 3 else number + 0.5}

    def write(self, folder, name, rows):
        with (folder / f"{name}.{self.format}").open("w", newline="") as out:
            writer = csv.writer(out, delimiter=self.delimiter)
            writer.writerow(["n", "s", "x"])
            writer.writerows(["bad", "", ""] if row is None else row.values() for row in rows)

    def may_end_at(self, content, length):
        return True

    # It reads many cuts of a file, which takes half a second.
    @pytest.mark.full
    def test_a_file_that_is_cut_off_is_named(self, tmp_path):
        super().test_a_file_that_is_cut_off_is_named(tmp_path)


class TestTsv(TestCsv):
    format = "tsv"
    delimiter = "\t"
