"""What a run has learnt about places, in numbers: its matrix A, and how near predictions look."""

import torch

from flexpredict.health.gauges import effective_rank
from flexpredict.report.analysis import positions
from flexpredict.report.images import find_images
from flexpredict.report.of_images import locality
from flexpredict.report.of_runs import noise_matrix
from flexpredict.report.runs import NotDrawn, Run

_DRAWS = 256


def learnt(run: Run) -> dict[str, float]:
    """effective_rank: of A Aᵀ; rank_kept: over that of the untrained A.
    own_beginning: likeness of A Aᵀ to that of the untrained A.
    short_waves: growth of the noise on the shorter half of ψ's wavelengths, over the longer half.
    own_place, displaced: where noisy positions point, share in % and patches (Figure 5).
    neighbourhood_mass, look: of predictions, in % and patches, temperature 0.1 (Figure 6).
    """
    now, first = (positions.projection(part).cpu() for part in (run.predictor, run.untrained))
    ranks = [effective_rank(positions.spectrum(matrix)) for matrix in (now, first)]
    growth = positions.variance_by_frequency(now) / positions.variance_by_frequency(first)
    short, long = growth.mean(0).chunk(2)  # wavelengths grow
    found = {
        "effective_rank": ranks[0],
        "rank_kept": ranks[0] / ranks[1],
        "own_beginning": positions.likeness(now, first),
        "short_waves": float(short.mean() / long.mean()),
    }
    try:
        noise = noise_matrix(run).cpu()
    except NotDrawn:  # not that of one matrix
        pass
    else:
        psi = run.predictor.predictor_pos_embed[0].cpu()
        generator = torch.Generator().manual_seed(0)
        away = positions.displacement(psi, run.grid, noise, _DRAWS, generator)
        found |= {"own_place": 100 * away.nearest_is_query, "displaced": away.patches}
    if run.settings.objective == "ijepa":
        images = find_images([run], None)
        if isinstance(images, str):
            raise NotDrawn(images)
        seen = locality(run, images, 0.1)
        found |= {"neighbourhood_mass": 100 * seen.neighbourhood_mass, "look": seen.mean_distance}
    return found
