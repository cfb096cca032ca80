"""How the help is arranged: groups of options, in the order in which they matter, and examples."""

from __future__ import annotations

from cyclopts import Group

REQUIRED = Group("Required", sort_key=0)
ROWS = Group("Rows", sort_key=1, help="How rows become requests. OpenAI batch files hold requests already.")
SAMPLING = Group("Sampling", sort_key=2, help="Request fields for rows that do not set them.")
ANSWERS = Group("Answers", sort_key=3, help="Rows that are too long for the model, and rows that repeat.")
ENGINE = Group("Engine", sort_key=4)
PLACE = Group("Cluster and store", sort_key=5)
OUTPUT = Group("Output", sort_key=6)
LIMITS = Group("Limits", sort_key=1, help="What the job may take.")
COUNTING = Group("Counting", sort_key=3)

JSON_HELP = "Print one JSON object on the last line of stdout."

ABOUT = """\
Offline batch inference of LLMs: one committed outcome per request, whatever dies.

  dray run requests.jsonl --model /models/llama --output out   run a batch
  dray status --store out --watch                              follow it
  dray resume JOB --store out                                  go on after a stop
  dray plan requests.jsonl --model /models/llama               what a batch will cost, and on which GPUs
  dray doctor --model /models/llama                            check this machine
"""

RUN = """\
Run a batch of requests, or go on with it where it stopped.

The same command again goes on with the job. Ctrl-C stops the run in order, and
a second Ctrl-C at once. A cancelled job (`dray cancel`, Cancel in Prefect)
goes on only with --resume or `dray resume`.
"""

RUN_EXAMPLES = """\
Examples:

  An OpenAI batch file:
    dray run requests.jsonl --model /models/llama --output out

  A column of a table, with a system prompt:
    dray run tickets.csv --prompt-column text --max-tokens 64 \\
      --system-prompt 'Answer in JSON.' --model hf://ORG/NAME --output out

  A dataset of a hub, whose chat messages dray finds:
    dray run 'hf://datasets/ORG/NAME/data/train-*.parquet' \\
      --model hf://ORG/NAME --output out

  A prompt made from columns, on a Ray cluster that already runs:
    dray run 's3://bucket/*.parquet' --template 'Sentiment of: {text}' \\
      --cluster 10.0.0.5:6379 --store env:STORE_URL \\
      --model s3://bucket/llama --output s3://bucket/out

  Engine arguments, as vLLM names them:
    dray run requests.jsonl --model /models/llama --output out \\
      --engine-arg max_model_len=4096 --engine-arg dtype=bfloat16
"""

PLAN = """\
Say what a batch will take, on which GPUs and settings: dollars and time.

Reads the input, and the model's config and tokenizer. Needs no GPU and no
engine, and starts nothing.
"""

PLAN_EXAMPLES = """\
Examples:

  Within six hours and 50 dollars, on two kinds of GPUs:
    dray plan requests.jsonl --model hf://ORG/NAME --deadline 6h --budget 50 \\
      --hardware l40s,h100

  What shorter answers would change:
    dray plan requests.jsonl --model /models/llama --set max_tokens=64

  Kept, and held against the input when the batch runs:
    dray plan requests.jsonl --model /models/llama --json > plan.json
    dray run requests.jsonl --model /models/llama --plan plan.json --output out
"""
