"""Folders and files that appear whole or not at all."""

import os
import subprocess
import sys
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


def test_text__is_utf8_whatever_the_language_of_the_machine(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from flexpredict.files import write_text; "
        r"write_text(Path(sys.argv[1]), '\u03c8 \u2260 \u03c3')"
    )
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x")], check=True, env=os.environ | plain
    )
    assert (tmp_path / "x").read_text("utf-8") == "ψ ≠ σ"
