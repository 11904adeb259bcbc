"""The table STRAGGLERS: every comparison of a rank, machine, stage or link with its peers."""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table

SUBJECTS = ("rank", "machine", "stage", "link")
FINDINGS = ("slow", "imbalance", "imbalance or slow device", "noisy")
PEERS = (
    "ranks of the same stage",
    "ranks of other machines",
    "the mean of the other stages",
    "all other ranks",
    "other links",
)
FRACTIONS = ("excess_fraction", "low_fraction", "high_fraction", "fast_fraction")
SubjectType, FindingType, PeersType = (pl.Enum(list(names)) for names in (SUBJECTS, FINDINGS, PEERS))

STRAGGLERS = Table(
    "stragglers",
    "one comparison of a rank, machine, stage or link with its peers",
    ("is_claimed", "extra_ns_per_step"),
    (
        Column("subject", SubjectType, "", "What is compared."),
        Column("finding", FindingType, "", "What is claimed about it if is_claimed."),
        Column(
            "rank", pl.Int32, "", "Rank; of a stage, its only rank; of a link, the sender.", nullable=True
        ),
        Column("machine", pl.String, "", "Its machine.", nullable=True),
        Column("stage", pl.Int32, "", "Stage; of a rank, the stage that adds most.", nullable=True),
        Column(
            "kind",
            pl.String,
            "",
            "Kind of action that adds most; of a link, its direction; of both ways together, null.",
            nullable=True,
        ),
        Column("peer", pl.Int32, "", "The receiver of a link.", nullable=True),
        Column(
            "compared_with",
            PeersType,
            "",
            "The peers: their median is the denominator, for stages their mean.",
        ),
        Column("peers", pl.Int64, "", "Number of peers."),
        Column(
            "samples",
            pl.Int64,
            "",
            "Samples, the n of the interval: steps, or parts of steps if there are fewer than 4.",
        ),
        Column("span_count", pl.Int64, "", "Actions, or messages of a link, behind the samples."),
        Column("excess_fraction", pl.Float64, "of the peers'", "How much longer its actions take."),
        Column("low_fraction", pl.Float64, "of the peers'", "Lower end of its 95 % CI."),
        Column("high_fraction", pl.Float64, "of the peers'", "Upper end."),
        Column(
            "fast_fraction",
            pl.Float64,
            "of the peers'",
            "How much longer its fast actions take, at the 20th percentile.",
            nullable=True,
        ),
        Column(
            "extra_ns_per_step",
            pl.Float64,
            "ns",
            "Time that it adds per step to its actions or messages; of a stage or machine, to those of one rank. The "
            "iteration cannot be longer by more than this.",
            nullable=True,
        ),
        Column(
            "p_value",
            pl.Float64,
            "",
            "Probability of such an excess if there were none, or, of noisy ranks and links, none worth naming.",
        ),
        Column("is_claimed", pl.Boolean, "", "Whether it is claimed."),
    ),
)
"""For a noisy rank the fractions state how much wider its actions are spread."""
