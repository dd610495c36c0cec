"""Our kernels against their definitions in float64, on a GPU, or by Triton's interpreter on a CPU.

The interpreter runs the same source with NumPy. It has no products of bfloat16: float16 there.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model import fused, short_attention
from flexpredict.model.blocks import Block, Places, run_blocks

pytest.importorskip("triton", reason="Triton is not installed (it comes with the extra `dev`)")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
ROUNDING = torch.finfo(HALF).eps / 2


@pytest.fixture(autouse=True)
def _used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, too, wherever the half precision of autocast is."""
    if DEVICE == "cpu":
        for kernels in (fused, short_attention):
            monkeypatch.setattr(kernels, "usable", lambda *_: torch.is_autocast_enabled(DEVICE))


@pytest.mark.parametrize("tokens", [5, 18, 64, 70, 91, 128])
@pytest.mark.parametrize("width", [24, 32, 64, 80])
def test_short_attention__is_attention(tokens: int, width: int) -> None:
    torch.manual_seed(0)
    heads = 3
    qkv = torch.randn(4, tokens, 3 * heads * width, device=DEVICE).to(HALF).requires_grad_()
    gradient = torch.randn(4, tokens, heads * width, device=DEVICE).to(HALF)
    bias = torch.zeros(3 * heads * width, device=DEVICE, requires_grad=True)
    ours = short_attention.short_attention(qkv, heads, bias)
    ours.backward(gradient)
    exact = qkv.detach().double().requires_grad_()
    query, key, value = exact.unflatten(-1, (3, heads, width)).permute(2, 0, 3, 1, 4).unbind(0)
    score = (query @ key.mT / width**0.5).softmax(-1)
    theirs = (score @ value).transpose(1, 2).flatten(2)
    theirs.backward(gradient.double())
    assert qkv.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(ours.double(), theirs, rtol=5 * ROUNDING, atol=3 * ROUNDING)
    torch.testing.assert_close(qkv.grad.double(), exact.grad, rtol=5 * ROUNDING, atol=5 * ROUNDING)
    _near(bias.grad, exact.grad.sum((0, 1)), 3 * ROUNDING)


def _near(found: Tensor | None, exact: Tensor | None, share: float) -> None:
    """As a whole, relative to its size."""
    assert found is not None
    assert exact is not None
    assert float((found.double() - exact).norm() / exact.norm()) < share


@pytest.mark.parametrize("width", [48, 192, 768, 1280])
@pytest.mark.parametrize("passed", [True, False], ids=["both", "norm alone"])
def test_add_norm__is_a_sum_and_its_norm(width: int, passed: bool) -> None:
    torch.manual_seed(0)
    shape = (7, 31, width)
    norm = nn.LayerNorm(width, eps=1e-6, device=DEVICE)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(shape, device=DEVICE, requires_grad=True)
    branch = torch.randn(shape, device=DEVICE).to(HALF).requires_grad_()
    bias = torch.randn(width, device=DEVICE, requires_grad=True)
    by_stream, by_normed = (torch.randn(shape, device=DEVICE) for _ in range(2))
    given = [x, branch, bias, norm.weight, norm.bias]

    stream, normed = fused.add_norm(x, branch, bias, norm)
    loss = (normed.float() * by_normed).sum() + (stream * by_stream).sum() * passed
    found = torch.autograd.grad(loss, given)
    exact = [t.detach().double().requires_grad_() for t in given]
    total = exact[0] + exact[1] + exact[2]
    expected = F.layer_norm(total, (width,), exact[3], exact[4], 1e-6)
    loss = (expected * by_normed).sum() + (total * by_stream).sum() * passed
    wanted = torch.autograd.grad(loss, exact)

    torch.testing.assert_close(stream.double(), total, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(normed.double(), expected, rtol=2 * ROUNDING, atol=2 * ROUNDING)
    for one, two in zip(found, wanted, strict=True):
        _near(one, two, 1.3 * ROUNDING)


def test_bias_gelu__is_gelu() -> None:
    torch.manual_seed(0)
    x = (torch.randn(53, 700, device=DEVICE) * 3).to(HALF).requires_grad_()
    bias = torch.randn(700, device=DEVICE, requires_grad=True)
    gradient = torch.randn(53, 700, device=DEVICE).to(HALF)
    ours = fused.bias_gelu(x, bias)
    ours.backward(gradient)
    exact = [t.detach().double().requires_grad_() for t in (x, bias)]
    theirs = F.gelu(exact[0] + exact[1])
    theirs.backward(gradient.double())
    _rounded(ours, theirs)
    _near(x.grad, exact[0].grad, ROUNDING)
    _near(bias.grad, exact[1].grad, 1e-4)


def _rounded(found: Tensor, exact: Tensor) -> None:
    """Off by what the format rounds, and by what the polynomial in GELU is."""
    assert bool(((found.double() - exact).abs() <= exact.abs() * (ROUNDING + 3e-5) + 1e-6).all())


def test_gelu__is_gelu_where_no_gradient_is_asked_for() -> None:
    x = (torch.randn(53, 700, generator=torch.Generator().manual_seed(0)) * 3).to(DEVICE, HALF)
    with torch.no_grad():
        _rounded(fused.gelu(x), F.gelu(x.double()))


def _blocks() -> tuple[nn.ModuleList, Tensor]:
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(96, 3) for _ in range(3)).to(DEVICE)
    for parameter in blocks.parameters():
        nn.init.normal_(parameter, std=0.1)
    return blocks, torch.randn(2, 20, 96, device=DEVICE)


@pytest.mark.parametrize("places", [None, 5, "indices"])
def test_blocks__with_kernels_are_as_near_to_the_truth_as_without(
    places: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and every gradient, half precision against float64."""
    blocks, images = _blocks()
    asked: Places = torch.randint(0, 20, (2, 6), device=DEVICE) if places == "indices" else places  # type: ignore[assignment]

    def grades(dtype: torch.dtype) -> list[Tensor]:
        model, x = blocks.to(dtype), images.to(dtype).requires_grad_()
        with torch.autocast(DEVICE, HALF, enabled=dtype == torch.float32):
            y = run_blocks(model, x, asked)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]

    truth = grades(torch.float64)
    with_kernels = grades(torch.float32)
    assert fused.usable(images) is False  # outside of autocast
    _forbid(monkeypatch)
    plain = grades(torch.float32)
    for ours, theirs, true in zip(with_kernels, plain, truth, strict=True):
        error = float((ours.double() - true).norm() / true.norm())
        usual = float((theirs.double() - true).norm() / true.norm())
        assert error < 1.5 * usual + ROUNDING / 4


def _forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernels in (fused, short_attention):
        monkeypatch.setattr(kernels, "usable", lambda *_: False)


def test_blocks__a_bias_is_rounded_as_by_plain_operations_where_no_gradient_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The MLP's first, 0.45 of a step beside a product of 1: within its product it is lost."""
    block = Block(32, 1).to(DEVICE)
    for parameter in block.parameters():
        parameter.data.zero_()
    block.norm2.bias.data[0] = 1
    block.mlp.fc1.weight.data[0, 0] = block.mlp.fc2.weight.data[0, 0] = 1
    block.mlp.fc1.bias.data[0] = 0.9 * ROUNDING
    images = torch.zeros(1, 16, 32, device=DEVICE)

    def hidden(grad: bool) -> float:
        with torch.set_grad_enabled(grad), torch.autocast(DEVICE, HALF):
            return float(block(images)[0, 0, 0].detach())

    looked_at, trained = hidden(False), hidden(True)
    _forbid(monkeypatch)
    assert looked_at == hidden(False) == hidden(True)
    assert looked_at != trained
