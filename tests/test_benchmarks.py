"""Benchmarks need hours or a GPU; here they import, and trials compute what they say."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

FOLDER = Path(__file__).parents[1] / "benchmarks"


def _imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    for other in FOLDER.glob("*.py"):
        monkeypatch.delitem(sys.modules, other.stem, raising=False)
    return importlib.import_module(name)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_benchmark__imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _imported(name, monkeypatch).__doc__


@pytest.mark.skipif(torch.cuda.is_available(), reason="tiles are too small for a GPU's")
@pytest.mark.parametrize("parts", [1, 2])
def test_products__with_their_ends_are_what_they_say(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Triton's interpreter; no side is a whole number of tiles."""
    pytest.importorskip("triton", reason="Triton is not installed (it comes with the extra `dev`)")
    products, generator = _imported("products", monkeypatch), torch.Generator().manual_seed(0)
    form = products.Form(16, 32, 16, stages=2, warps=4, parts=parts)
    x, wide = (torch.randn(70, n, generator=generator).half() for n in (40, 88))
    weight = (torch.randn(88, 40, generator=generator) / 40**0.5).half()
    bias = torch.randn(88, generator=generator)

    def found(end: str, turned: bool, **given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w = weight.T.contiguous() if turned else weight
        return products.product(x, w, turned=turned, end=end, form=form, processors=3, **given)

    exact = x.double() @ weight.double().T
    for turned in (False, True):
        assert _near(found("none", turned)[0], exact)
    gated, hidden, _ = found("gelu", turned=False, bias=bias)
    assert _near(hidden, exact + bias)
    assert _near(gated, F.gelu(exact + bias))
    before = wide.double().requires_grad_()
    (slope,) = torch.autograd.grad(F.gelu(before), before, exact)
    gradient, _, sums = found("gelu_backward", turned=True, wide=wide)
    assert _near(gradient, slope)
    assert _near(sums.sum(0), slope.sum(0))


def _near(found: torch.Tensor, exact: torch.Tensor) -> bool:
    return float((found.double() - exact).norm() / exact.norm()) < 1e-3
