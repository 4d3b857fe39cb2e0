"""stub"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Quarantined(ValueError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class ModelSchema:
    schema: dict[str, Any]
    notes: tuple[str, ...] = ()


def model_schema(input_schema: Mapping[str, Any]) -> ModelSchema:
    return ModelSchema(dict(input_schema))
