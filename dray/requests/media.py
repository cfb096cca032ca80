"""tmp"""
from dataclasses import dataclass
@dataclass(frozen=True)
class _M: invalid: str
SOUNDS=_M("invalid_audio")
