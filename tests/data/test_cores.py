import pytest

from flexpredict.data import cores


@pytest.mark.parametrize(
    ("said", "processes", "threads"),
    [(None, 2, 4), ("1", 2, 1), ("16", 2, 4), ("0", 2, 4), ("many", 16, 1), ("2", 16, 1)],
)
def test_threads__are_a_share_of_the_cores_or_what_the_user_said(
    said: str | None, processes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert cores.threads_each(processes) == threads
