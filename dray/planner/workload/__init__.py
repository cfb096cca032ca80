"""What a job asks for: tokens of its prompts and answers, and the prefixes that its rows share.

``gather`` reads rows once, and gives :class:`dray.planner.rows.RowFacts`; ``estimate`` gives figures of the
whole job, from all rows or from a sample.
"""

from dray.planner.workload.encoders import Bytes, TokenizerAt, Tokens
from dray.planner.workload.estimating import SAMPLE_ROWS, Counting, estimate
from dray.planner.workload.figures import Spread, Workload
from dray.planner.workload.gathering import gather
from dray.planner.workload.lengths import AtLeast, Bounds, Learned, Lengths
from dray.planner.workload.rows import InputLines

__all__ = [
    "gather",
    "Tokens",
    "TokenizerAt",
    "Bytes",
    "AtLeast",
    "Learned",
    "Lengths",
    "Bounds",
    "estimate",
    "Counting",
    "SAMPLE_ROWS",
    "Workload",
    "Spread",
    "InputLines",
]
