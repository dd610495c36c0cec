"""Folders and files that appear whole or not at all."""

from pathlib import Path

import pytest

from flexpredict.files import fresh_folder


def test_fresh_folder__errors_name_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="out") as caught, fresh_folder(tmp_path / "out") as folder:
        (folder / "sub" / "x").write_text("")
    assert caught.value.filename == str(tmp_path / "out" / "sub" / "x")
    with pytest.raises(NotADirectoryError) as caught, fresh_folder(tmp_path / "file" / "out"):
        pass
    assert caught.value.filename == str(tmp_path / "file" / "out")
    assert not (tmp_path / "out").exists()
