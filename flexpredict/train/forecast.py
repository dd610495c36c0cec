"""What a run will take, said before it starts: memory and time, from shapes and a short probe."""

import torch

from flexpredict import build
from flexpredict.config import Settings
from flexpredict.data.cores import cores_taken, free_memory, usable_cores
from flexpredict.engine import estimate
from flexpredict.engine.distributed import Ranks
from flexpredict.model.masking import MaskSampler
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.mae import Mae
from flexpredict.train.step import Ways, ways_of


def forecast(
    settings: Settings, objective: IJepa | Mae, sampler: MaskSampler, steps: int, ranks: Ranks
) -> list[str]:
    """Lines for the person who starts a run of so many steps more."""
    device = ranks.device
    ways = ways_of(settings, objective, device, ranks.world)
    work = build.build_workload(settings, objective, sampler)
    flops = estimate.flops_per_image(work)
    share = estimate.usual_share(device, ways.compiled, work.encoder.dim)
    seconds = estimate.estimate_seconds(
        flops,
        steps * settings.batch_size / ranks.world,
        estimate.matmul_rate(device, ways.dtype),
        share,
        checkpointing=settings.grad_checkpointing,
    )
    at_once = settings.batch_size // ranks.world // settings.accumulate
    need = memory_of(settings, work, at_once, ways, world=ranks.world)
    where = "on the GPU" if device.type == "cuda" else "of memory"
    lines = [
        f"about {size_in_words(need)} {where} and {in_words(seconds)} "
        f"({flops.total / 1e9:.3g} GFLOP an image, if images arrive in time)"
    ]
    if device.type == "cuda":  # the matrices that were multiplied are none of the run's memory
        torch.cuda.reset_peak_memory_stats(device)
    room = free(device, objective)
    if need > room:
        lines.append(
            f"warning: that is more than the {size_in_words(room)} that are free: lower "
            f"batch_size, raise accumulate or set grad_checkpointing=true if memory runs out"
        )
    threads = torch.get_num_threads()
    alone = device.type == "cpu" and ranks.world == 1 and threads > 1
    if alone and (taken := cores_taken()) > usable_cores() / 3:
        lines.append(
            f"warning: other work keeps {taken:.1f} of {usable_cores()} cores busy, and {threads} "
            f"threads that wait for each other can be many times slower than one: stop it, or set "
            f"OMP_NUM_THREADS=1"
        )
    return lines


def memory_of(
    settings: Settings, work: estimate.Workload, at_once: int, ways: Ways, *, world: int = 1
) -> int:
    """Bytes at the peak of a step that computes so many images at once on each device."""
    return estimate.estimate_memory(
        work,
        at_once,
        ways.dtype,
        checkpointing=settings.grad_checkpointing,
        gradients_stay=ways.graph or settings.accumulate > 1,
        world=world,
    )


def free(device: torch.device, objective: torch.nn.Module | None = None) -> int:
    """Bytes for a step, those included that its objective holds there already."""
    held = sum(p.nbytes for p in objective.parameters()) if objective is not None else 0
    if device.type != "cuda":
        return free_memory() + held
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused + held


def size_in_words(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def in_words(seconds: float) -> str:
    """Two units at most: 45 s, 12 min, 2 h 10 min, 3 d 4 h."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    if minutes < 100:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"
