"""What a job's nodes did with their time, and what that costs: exact, in whole microseconds."""

from dray.account.bill import Account, Predicted, account_of
from dray.account.lives import Life, NodeBill, closing, spans_of
from dray.account.spans import PARTS, Phase, Span, part_of

__all__ = [
    "account_of",
    "Account",
    "Predicted",
    "Life",
    "NodeBill",
    "spans_of",
    "closing",
    "Span",
    "Phase",
    "PARTS",
    "part_of",
]
