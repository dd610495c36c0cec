"""On a GPU: our kernels against their definitions in float64. `pytest -m gpu`."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model import fused, short_attention
from flexpredict.model.blocks import Block, Places, run_blocks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tokens", [5, 18, 64, 70, 91, 128])
@pytest.mark.parametrize("width", [24, 32, 64, 80])
def test_short_attention__is_attention(tokens: int, width: int) -> None:
    torch.manual_seed(0)
    heads = 3
    qkv = torch.randn(4, tokens, 3 * heads * width, device="cuda").bfloat16().requires_grad_()
    gradient = torch.randn(4, tokens, heads * width, device="cuda").bfloat16()
    assert short_attention.usable(qkv[..., : heads * width], heads)
    bias = torch.zeros(3 * heads * width, device="cuda", requires_grad=True)
    ours = short_attention.short_attention(qkv, heads, bias)
    ours.backward(gradient)
    exact = qkv.detach().double().requires_grad_()
    query, key, value = exact.unflatten(-1, (3, heads, width)).permute(2, 0, 3, 1, 4).unbind(0)
    score = (query @ key.mT / width**0.5).softmax(-1)
    theirs = (score @ value).transpose(1, 2).flatten(2)
    theirs.backward(gradient.double())
    assert qkv.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(ours.double(), theirs, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(qkv.grad.double(), exact.grad, rtol=2e-2, atol=2e-2)
    _near(bias.grad, exact.grad.sum((0, 1)), 1e-2)


def _near(found: Tensor | None, exact: Tensor | None, share: float) -> None:
    """As a whole, relative to its size."""
    assert found is not None
    assert exact is not None
    assert float((found.double() - exact).norm() / exact.norm()) < share


@pytest.mark.parametrize("width", [48, 192, 768, 1280])
@pytest.mark.parametrize("passed", [True, False], ids=["both", "norm alone"])
def test_add_norm__is_a_sum_and_its_norm(width: int, passed: bool) -> None:
    torch.manual_seed(0)
    shape = (37, 91, width)
    norm = nn.LayerNorm(width, eps=1e-6, device="cuda")
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(shape, device="cuda", requires_grad=True)
    branch = torch.randn(shape, device="cuda").bfloat16().requires_grad_()
    bias = torch.randn(width, device="cuda", requires_grad=True)
    by_stream, by_normed = (torch.randn(shape, device="cuda") for _ in range(2))
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
    torch.testing.assert_close(normed.double(), expected, rtol=8e-3, atol=8e-3)
    for one, two in zip(found, wanted, strict=True):
        _near(one, two, 5e-3)


def test_bias_gelu__is_gelu() -> None:
    torch.manual_seed(0)
    x = (torch.randn(53, 700, device="cuda") * 3).bfloat16().requires_grad_()
    bias = torch.randn(700, device="cuda", requires_grad=True)
    gradient = torch.randn(53, 700, device="cuda").bfloat16()
    ours = fused.bias_gelu(x, bias)
    ours.backward(gradient)
    exact = [t.detach().double().requires_grad_() for t in (x, bias)]
    theirs = F.gelu(exact[0] + exact[1])
    theirs.backward(gradient.double())
    half_step = theirs.abs() * 2**-8 + 1e-6
    assert bool(((ours.double() - theirs).abs() <= half_step).all())
    _near(x.grad, exact[0].grad, 3e-3)
    _near(bias.grad, exact[1].grad, 1e-4)


@pytest.mark.parametrize("places", [None, 5, "indices"])
def test_blocks__with_kernels_are_as_near_to_the_truth_as_without(
    places: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and every gradient, bfloat16 against float64."""
    torch.manual_seed(0)
    asked: Places = torch.randint(0, 20, (2, 6), device="cuda") if places == "indices" else places  # type: ignore[assignment]
    blocks = nn.ModuleList(Block(96, 3) for _ in range(3)).cuda()
    for parameter in blocks.parameters():
        nn.init.normal_(parameter, std=0.1)
    images = torch.randn(2, 20, 96, device="cuda")

    def grades(dtype: torch.dtype) -> list[Tensor]:
        model, x = blocks.to(dtype), images.to(dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.float32):
            y = run_blocks(model, x, asked)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]

    truth = grades(torch.float64)
    with_kernels = grades(torch.float32)
    assert fused.usable(images) is False  # outside of autocast
    monkeypatch.setattr(fused, "usable", lambda _: False)
    monkeypatch.setattr(short_attention, "usable", lambda *_: False)
    plain = grades(torch.float32)
    for ours, theirs, true in zip(with_kernels, plain, truth, strict=True):
        error = float((ours.double() - true).norm() / true.norm())
        usual = float((theirs.double() - true).norm() / true.norm())
        assert error < 1.5 * usual + 1e-3
