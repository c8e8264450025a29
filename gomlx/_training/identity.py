"""What has to be the same wherever a run's rows are computed, for its bits to be those of one process."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gomlx import _gomlx
from gomlx._generation.state_bundle import weights_hash
from gomlx._training.stored import SAME_MODEL

if TYPE_CHECKING:
    from gomlx._generation.model import Model

IDENTITY = ("instruction set", "gomlx", *(f"model ({name})" for name in SAME_MODEL), "model (weights)")


def identity_of(model: Model) -> dict[str, Any]:
    """{name: what it is}: the instruction set, the shape of the model, and a hash of its weights' files."""
    return dict(zip(IDENTITY, (_gomlx.isa(), _gomlx.version, *(model.info[name] for name in SAME_MODEL),
                               weights_hash(model.info["path"]))))


def difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What is another one, in words; empty where nothing is."""
    return next((f"its {name} is {mine[name]}, the driver's {theirs[name]}" for name in theirs
                 if mine.get(name) != theirs[name]), "")
