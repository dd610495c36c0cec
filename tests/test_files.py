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


LITTLE_ROOM = """
import resource, sys
from flexpredict.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main()
"""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["report", "RUN", "--out", "OUT.html"], "OUT.html"),
        (["data", "shard", "IMAGES", "--out", "OUT"], "OUT/shard-000000.tar"),
        (["export", "RUN", "--to", "torch", "--out", "OUT"], "OUT/checkpoint.pth.tar"),
        (["export", "RUN", "--to", "huggingface", "--out", "OUT"], "OUT/model.safetensors"),
        (["export", "RUN", "--to", "onnx", "--out", "OUT"], "OUT"),
    ],
    ids=lambda words: " ".join(words[:4]) if isinstance(words, list) else "",
)
def test_full_disk__what_cannot_be_written_is_named(
    words: list[str], named: str, runs: list[Path], images: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for a disk that is full."""
    for kind, library in {"huggingface": "transformers", "onnx": "onnxscript"}.items():
        if kind in words:
            pytest.importorskip(library)
    out = tmp_path / "out"
    places = {"RUN": runs[0], "IMAGES": images, "OUT": out, "OUT.html": f"{out}.html"}
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_ROOM, *(str(places.get(word, word)) for word in words)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"flexpredict: {named.replace('OUT', str(out))}"), last
    assert "cannot be read or written" in last
    assert not list(tmp_path.rglob(".*"))  # nothing half written is left in the way
