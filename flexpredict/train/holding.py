"""Where a run keeps its images decoded, and how many processes load them."""

import math
import os

from flexpredict.config import Settings
from flexpredict.data import loader
from flexpredict.data.cores import usable_cores
from flexpredict.data.held import Place, TooLarge, place_for, room_for
from flexpredict.data.loader import Batches, DeviceBatches
from flexpredict.data.sources import Source
from flexpredict.engine.distributed import Ranks
from flexpredict.progress import Tally, say

_WORDS: dict[Place, str] = {
    "none": "decoded when needed", "ram": "held in memory", "device": "held on the GPU"
}  # fmt: skip


def workers_of(settings: Settings) -> int:
    if settings.workers is not None:
        return settings.workers
    return min(8, max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def hold(
    batches: Batches,
    settings: Settings,
    ranks: Ranks,
    passes: float,
    before: Place | None,
) -> tuple[Batches | DeviceBatches, Place]:
    """Decodes the set and keeps it where it was asked for, or was before, or where it fits.

    All processes do the same. A guess that turns out too small is taken back.
    """
    share = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    place, limit = _place(settings, batches.source, ranks, passes, before, share), math.inf
    if settings.hold == "auto" and place != "none":
        limit = room_for(place, ranks.device, share=share)
    decoding = Tally("decoding") if ranks.is_main else None
    held, trouble = None, None
    try:
        held = loader.hold(batches, place, ranks.device, limit=limit, progress=decoding)
    except TooLarge as error:
        trouble = str(error)
    if ranks.first(trouble) is not None:
        held, place = batches, "none"
        if ranks.is_main:
            say("the images do not fit into memory decoded: each is decoded when it is needed")
    assert held is not None
    if ranks.is_main and before not in (None, place):
        say(
            f"images were {_WORDS[before]} so far and are {_WORDS[place]} now: some pixels are "
            f"rounded otherwise, and the run is not the same to the last bit"
        )
    return held, place


def _place(
    settings: Settings,
    source: Source,
    ranks: Ranks,
    passes: float,
    before: Place | None,
    share: int,
) -> Place:
    if settings.hold == "device" and ranks.device.type != "cuda":
        raise ValueError("hold=device needs a GPU: set hold=ram or hold=auto")
    if settings.hold != "auto":
        return settings.hold
    if before == "none" or passes < 2:
        return "none"
    workers = workers_of(settings)
    place = place_for(source, settings.in_channels, ranks.device, share=share, workers=workers)
    if ranks.any(place == "none"):
        return "none"
    return "ram" if before == "ram" or ranks.any(place == "ram") else "device"
