import math
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from flexpredict.model.blocks import gather
from flexpredict.model.covariances import Covariance
from flexpredict.model.draws import ChunkPart, Draws
from flexpredict.model.masking import Masks
from flexpredict.model.positions import StochasticPositions, sincos_positions
from flexpredict.model.predictor import Predictor

D, P = 12, 8


def _stop(**options: object) -> tuple[StochasticPositions, nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    projection = nn.Linear(D, P).double()
    nn.init.normal_(projection.weight, std=0.5)
    return (
        StochasticPositions(D, P, **options).double(),  # type: ignore[arg-type]
        projection,
        torch.randn(1, 1, P, dtype=torch.float64),
    )


@pytest.mark.parametrize("noise_std", [-0.1, math.nan, math.inf])
def test_stochastic__noise_std_is_a_number_of_at_least_0(noise_std: float) -> None:
    with pytest.raises(ValueError, match="noise_std is a standard deviation, at least 0, not"):
        StochasticPositions(8, 4, noise_std)


def test_stochastic__what_does_not_fit_gets_one_sentence() -> None:
    """As in somebody's own model, where one takes the wrong of two widths."""
    stop, projection = StochasticPositions(8, 4), nn.Linear(8, 4)
    token, places = torch.zeros(4), torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"Linear from 8 to 4 numbers, but its weight is \(8, 4\)"):
        stop.masked(places, nn.Linear(4, 8), token)
    with pytest.raises(ValueError, match="Linear from 8 to 4 numbers, but it is none"):
        stop.context(torch.zeros(2, 3, 8), places, projection.weight)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="have 8 numbers and the predictor's tokens 4"):
        stop.masked(torch.zeros(2, 3, 8), projection, token)


def test_sincos__equals_released_tables(vectors: dict[str, dict[str, np.ndarray]]) -> None:
    for name, table in vectors["sincos"].items():
        dim, grid = (int(part[1:]) for part in name.split("_"))
        ours = sincos_positions(grid, grid, dim, dtype=torch.float64).numpy()
        np.testing.assert_allclose(ours, table, rtol=0, atol=1e-12)


def test_sincos__first_half_is_column_and_rows_have_fixed_norm() -> None:
    table = sincos_positions(3, 5, 64, dtype=torch.float64).view(3, 5, 64)
    assert torch.equal(table[0, :, :32], table[2, :, :32])  # the row does not matter
    assert torch.equal(table[:, 0, 32:], table[:, 4, 32:])  # the column does not matter
    assert not torch.equal(table[0, 0, :32], table[0, 1, :32])
    torch.testing.assert_close(table.norm(dim=-1), torch.full((3, 5), math.sqrt(32)).double())


def test_sincos__odd_width_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4, not 6"):
        sincos_positions(2, 2, 6, dtype=torch.float64)


@pytest.mark.parametrize("covariance", ["projected", "fixed"])
def test_masked__mean_and_covariance(covariance: str) -> None:
    """ψ̂ − ψ − m̃ has mean 0 and covariance noise_std² A Aᵀ (or noise_std² I)."""
    std, draws = 0.3, 200_000
    stop, projection, mask_token = _stop(noise_std=std, covariance=covariance)
    psi = torch.randn(1, P, dtype=torch.float64).expand(draws, P)
    with torch.no_grad():
        sample = stop.masked(psi[None], projection, mask_token[0])[0] - psi - mask_token[0]
    weight = projection.weight.detach()
    true = std**2 * (weight @ weight.T if covariance == "projected" else torch.eye(P).double())
    mean_error = true.diagonal().sqrt() / math.sqrt(draws)
    assert (sample.mean(0).abs() < 5 * mean_error).all()
    # The variance of a sample covariance of Gaussians: (Σij² + Σii Σjj) / n.
    error = ((true**2 + true.diagonal()[:, None] * true.diagonal()) / draws).sqrt()
    assert ((sample.T @ sample / draws - true).abs() < 5 * error).all()


def test_noise__is_not_shared_by_the_images_of_a_batch() -> None:
    """Positions without images would broadcast, and all images get the same draw."""
    stop, projection, mask_token = _stop(noise_on="both")
    psi, features = torch.zeros(5, P).double(), torch.zeros(2, 5, D).double()
    with pytest.raises(ValueError, match=r"shape \(5, \d+\): every image has noise of its own, so"):
        stop.masked(psi, projection, mask_token)
    for table in (psi, psi[None]):
        with pytest.raises(ValueError, match="so expand them"):
            stop.context(features, table, projection)
    one, other = stop.masked(psi.expand(2, -1, -1), projection, mask_token)
    assert not torch.isclose(one, other).any()


@pytest.mark.parametrize("covariance", get_args(Covariance))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_noise__formats_may_differ(covariance: str, dtype: torch.dtype) -> None:
    """Of the table of positions, as a float64 one, and of a narrowed model."""
    stop, projection, mask_token = _stop(covariance=covariance, noise_rank=2)
    projection.to(dtype)
    for positions in (torch.zeros(2, 3, P).double(), torch.zeros(2, 3, P, dtype=dtype)):
        context = stop.context(torch.zeros(2, 3, D, dtype=dtype), positions, projection)
        found = stop.masked(positions, projection, mask_token.to(dtype), context=context)
        wanted = torch.promote_types(positions.dtype, dtype)
        assert torch.promote_types(found.dtype, wanted) == found.dtype  # nothing is narrowed
        assert found.isfinite().all()


def test_masked__the_released_form_needs_b() -> None:
    stop, _, mask_token = _stop(form="released")
    with pytest.raises(ValueError, match="form='released' puts b in place of m̃: give a Linear"):
        stop.masked(torch.zeros(2, 3, P), nn.Linear(D, P, bias=False), mask_token)


def test_masked__gradient_reaches_A_through_the_noise_alone() -> None:
    stop, projection, mask_token = _stop()
    stop.masked(torch.zeros(4, 3, P).double(), projection, mask_token).square().sum().backward()
    assert projection.weight.grad is not None
    assert projection.weight.grad.abs().sum() > 0
    assert projection.bias.grad is None  # paper form: b is for context tokens


def test_masked__forms() -> None:
    psi = torch.randn(4, 3, P).double()
    generator = torch.Generator()
    tokens = {}
    for form in ("paper", "released"):
        stop, projection, mask_token = _stop(form=form)
        generator.manual_seed(1)
        tokens[form] = stop.masked(psi, projection, mask_token, Draws([_all_of(generator, 4)]))
    shift = tokens["released"] - tokens["paper"]
    torch.testing.assert_close(shift, (projection.bias - mask_token).expand_as(shift))


def test_masked__noise_off_is_the_deterministic_baseline() -> None:
    for form in ("paper", "released"):  # the baseline is ψ + m̃ whatever the form
        stop, projection, mask_token = _stop(noise_std=0.0, form=form)
        psi = torch.randn(4, 3, P).double()
        assert torch.equal(stop.masked(psi, projection, mask_token), psi + mask_token)


@pytest.mark.parametrize(
    ("noise_on", "context", "masked"),
    [("masked", False, True), ("context", True, False), ("both", True, True)],
)
def test_noise_on__rows_of_table_7(noise_on: str, context: bool, masked: bool) -> None:
    stop, projection, mask_token = _stop(noise_on=noise_on)
    psi, features = torch.randn(4, 3, P).double(), torch.randn(4, 3, D).double()
    plain = projection(features) + psi
    assert torch.equal(stop.context(features, psi, projection), plain) is not context
    assert torch.equal(stop.masked(psi, projection, mask_token), psi + mask_token) is not masked


def test_context__noise_is_independent_of_the_masked_tokens_noise() -> None:
    stop, projection, mask_token = _stop(noise_on="both")
    psi, features = torch.zeros(2000, 1, P).double(), torch.zeros(2000, 1, D).double()
    draws = Draws()
    with torch.no_grad():
        context = (stop.context(features, psi, projection, draws) - projection.bias)[:, 0]
        masked = (stop.masked(psi, projection, mask_token, draws) - mask_token)[:, 0]
    correlation = torch.corrcoef(torch.cat([context, masked], 1).T)[:P, P:]
    assert correlation.abs().max() < 5 / math.sqrt(2000)


def test_untied__noise_has_a_matrix_of_its_own() -> None:
    stop, projection, mask_token = _stop(tied=False)
    stop.masked(torch.zeros(4, 3, P).double(), projection, mask_token).square().sum().backward()
    assert projection.weight.grad is None
    assert stop.noise_projection is not None
    assert stop.noise_projection.weight.grad is not None


def test_norm__makes_the_scale_of_the_features_irrelevant() -> None:
    stop, projection, _ = _stop(norm=True)
    psi, features = torch.zeros(2, 3, P).double(), torch.randn(2, 3, D).double()
    tokens = [stop.context(scale * features, psi, projection) for scale in (1.0, 100.0)]
    torch.testing.assert_close(*tokens, rtol=1e-4, atol=1e-4)


def test_dropout__keeps_the_mean_and_stops_in_eval_mode() -> None:
    stop, projection, _ = _stop(noise_std=0.0, dropout=0.4)
    features, psi = torch.ones(1, 1, D).double(), torch.zeros(50_000, 1, P).double()
    plain = projection(features)
    with torch.no_grad():
        dropped = stop.context(features.expand(50_000, 1, D), psi, projection)
        share = (dropped == 0).double().mean()
        assert abs(share - 0.4) < 5 * math.sqrt(0.24 / dropped.numel())
        error = plain[0, 0].abs() * math.sqrt(0.4 / 0.6 / 50_000)
        assert ((dropped.mean((0, 1)) - plain[0, 0]).abs() < 5 * error).all()
        assert torch.equal(stop.eval().context(features, psi[:1], projection), plain)


def test_penalty__sums_over_A() -> None:
    projection = nn.Linear(2, 1)
    with torch.no_grad():
        projection.weight.copy_(torch.tensor([[3.0, -4.0]]))
    assert StochasticPositions(2, 1, l1=0.5).penalty(projection).item() == pytest.approx(3.5)
    assert StochasticPositions(2, 1, l2=0.1).penalty(projection).item() == pytest.approx(2.5)
    assert StochasticPositions(2, 1).penalty(projection).item() == 0


def test_stop__wrong_settings_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        StochasticPositions(D, P, -0.1)
    with pytest.raises(ValueError, match="no matrix to untie"):
        StochasticPositions(D, P, tied=False, covariance="fixed")


def test_draws__part_of_a_chunk_equals_the_whole() -> None:
    def draws(*parts: tuple[int, int]) -> torch.Tensor:
        held = []
        for start, count in parts:
            generator = torch.Generator().manual_seed(7)
            held.append(ChunkPart(generator, 10, start, count))
        total = sum(count for _, count in parts)
        return Draws(held).normal(total, 3, like=torch.zeros(1))

    whole = draws((0, 10))
    assert torch.equal(draws((4, 3)), whole[4:7])
    assert torch.equal(draws((8, 2), (0, 1)), torch.cat([whole[8:], whole[:1]]))


def test_stop__in_somebody_elses_model_gives_the_same_tokens() -> None:
    """Three lines in a predictor that this package did not write (README)."""

    class TheirPredictor(nn.Module):
        """A plain decoder around torch's own transformer."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(D, P)
            self.query = nn.Parameter(torch.randn(P))
            self.table = nn.Parameter(sincos_positions(4, 4, P), requires_grad=False)
            self.body = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(P, 2, 16, batch_first=True), 1
            )
            self.stop = StochasticPositions(D, P, noise_std=0.25)  # 1

        def tokens(
            self, seen: torch.Tensor, where: torch.Tensor, hidden: torch.Tensor
        ) -> torch.Tensor:
            context = self.stop.context(seen, self.table[where], self.embed)  # 2
            masked = self.stop.masked(self.table[hidden], self.embed, self.query)  # 3
            return torch.cat([context, masked], dim=1)

        def forward(
            self, seen: torch.Tensor, where: torch.Tensor, hidden: torch.Tensor
        ) -> torch.Tensor:
            return self.body(self.tokens(seen, where, hidden))[:, where.shape[1] :]  # type: ignore[no-any-return]

    torch.manual_seed(0)
    theirs = TheirPredictor()
    ours = Predictor(
        encoder_dim=D, output_dim=D, dim=P, depth=1, heads=2, grid=(4, 4),
        positions=StochasticPositions(D, P, noise_std=0.25),
    )  # fmt: skip
    with torch.no_grad():
        ours.predictor_embed.load_state_dict(theirs.embed.state_dict())
        ours.mask_token.copy_(theirs.query.view(1, 1, P))
    masks = Masks(torch.randint(16, (5, 6)), torch.randint(16, (5, 1, 3)))
    seen = torch.randn(5, 6, D)

    table = ours.predictor_pos_embed.expand(5, -1, -1)
    torch.manual_seed(3)
    context = ours.positions.context(seen, gather(table, masks.context), ours.predictor_embed)
    masked = ours.positions.masked(
        gather(table, masks.targets), ours.predictor_embed, ours.mask_token[:, None]
    )
    torch.manual_seed(3)
    tokens = theirs.tokens(seen, masks.context, masks.targets[:, 0])
    torch.testing.assert_close(torch.cat([context, masked[:, 0]], 1), tokens, rtol=0, atol=1e-6)

    theirs(seen, masks.context, masks.targets[:, 0]).sum().backward()
    assert theirs.embed.weight.grad is not None


def _all_of(generator: torch.Generator, count: int) -> ChunkPart:
    return ChunkPart(generator, count, 0, count)
