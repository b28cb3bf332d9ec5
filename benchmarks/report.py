"""Write docs/performance.md from bench-results/, and, with --check, fail where a ratio is worse than promised. Never on seconds."""

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS, PAGE = Path("bench-results"), Path("docs/performance.md")
GIGABYTE = 1e9
LIMITS = (  # (what, where in the results, bound, whether it must stay below)
    ("SmolLM2-135M: a round / TRL's round", ("rounds", "smollm2", "ratio"), 1 / 3, True),
    ("nano: a round / TRL's round", ("rounds", "nano", "ratio"), 1 / 3, True),
    ("SmolLM2-135M: share of the matrix-product rate, whole round", ("rounds", "smollm2", "ours", "share"), 0.6, False),
    ("SmolLM2-135M: share of the matrix-product rate, update", ("rounds", "smollm2", "ours", "update_share"), 0.8, False),
    (
        "SmolLM2-135M: memory over weights, gradients and Adam, GB",
        ("rounds", "smollm2", "ours", "over_parameters_gigabytes"),
        1.5,
        True,
    ),
    ("4 nano workers on two cores / 1 on one core, node-rounds a second", ("workers", "gain"), 1.7, False),
    ("store, scoring and journal, share of a nano round", ("workers", "other_share"), 0.08, True),
    ("store operations per node and round, 1,000 nodes / 4 nodes", ("exchange", "growth"), 2.0, True),
)


def load() -> dict[str, Any]:
    missing = [name for name in ("rounds", "growth", "workers", "exchange", "overlap") if not (RESULTS / f"{name}.json").exists()]
    if missing:
        raise SystemExit(f"bench-results lacks {', '.join(missing)}: run 'make bench' first")
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    own = found["rounds"]["smollm2"]["ours"]
    own["over_parameters_gigabytes"] = own["over_parameters_bytes"] / GIGABYTE
    found["workers"]["other_share"] = max(run["other_share"] for run in found["workers"]["runs"])
    return found


def value_at(results: Any, path: tuple[str, ...]) -> float:
    for key in path:
        results = results[key]
    return float(results)


def verdicts(results: dict[str, Any]) -> list[tuple[str, float, float, bool, bool]]:
    """What was promised, the figure, the bound, whether it is an upper one, and whether it holds."""
    rows = []
    for what, path, bound, below in LIMITS:
        figure = value_at(results, path)
        rows.append((what, figure, bound, below, figure <= bound if below else figure >= bound))
    return rows


def page(results: dict[str, Any]) -> str:
    return (
        "\n\n".join(
            [
                _head(),
                _promises(results),
                _rounds(results["rounds"]),
                _workers(results["workers"]),
                _growth(results["growth"]),
                _overlap(results["overlap"]),
            ]
        )
        + "\n"
    )


def _head() -> str:
    return """# Performance

Written by `make bench`; the figures are in `bench-results/`. Seconds are of one machine and one run: trust the ratios. A round is G
completions for each of I questions and one update over them, at equal work for all sides: the same model file in fp32, prompts of
the same length, completions of exactly the given length, rewards by which every group is informative, no external rollouts. TRL
runs at the micro-batch size that was fastest for it; GenRL, which has none, trains on all completions at once, on tokens made anew
from their text and cut at the given length: with SmolLM2 that took more than 13 GB, so it is here with nano only. They take
turns, each in a process of its own."""


def _promises(results: dict[str, Any]) -> str:
    lines = ["## What is promised, and what was measured", "", "| | measured | promised | |", "|---|---:|---:|---|"]
    for what, figure, bound, below, holds in verdicts(results):
        limit = f"{'at most' if below else 'at least'} {bound:.3g}"
        lines.append(f"| {what} | {figure:.3f} | {limit} | {'holds' if holds else '**does not hold**'} |")
    lines += [
        "",
        "What was tried, and what stands in the way where a promise does not hold: [LOG.md](LOG.md#speed-found-by-profiling).",
    ]
    return "\n".join(lines)


def _rounds(rounds: dict[str, Any]) -> str:
    lines = [
        "## A round, against TRL's GRPOTrainer and GenRL",
        "",
        "| | round | generate | update | tokens/s | peak memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, result in rounds.items():
        work = result["work"]
        lines.append(
            f"| **{name}**, {work['questions']} × {work['group_size']} completions of {work['new_tokens']} tokens, "
            f"prompts of {work['prompt_tokens']} | | | | | |"
        )
        lines += [
            _round("this project", result["ours"]),
            _round(f"TRL, micro-batches of {result['trl_micro_batch']}", result["trl"]),
        ]
        lines.append(_ratio("ratio to TRL", result, result["ours"], result["trl"]))
        theirs = result.get("genrl", {})
        if "failed" in theirs:
            lines.append(f"| GenRL | {theirs['failed']} | | | | |")
        elif theirs:
            lines.append(_round(f"GenRL, {theirs['tokens_trained']:.0f} of {theirs['tokens']:.0f} tokens trained on", theirs))
            lines.append(_ratio("ratio to GenRL", theirs, result["ours"], theirs))
    own = rounds["smollm2"]["ours"]
    shares = [f"{100 * own[key]:.0f} %" for key in ("generate_share", "update_share", "share")]
    lines += [
        "",
        f"An fp32 matrix product of 2048³ ran at {own['rate'] / 1e9:.0f} GFLOPS in between. Counting only the operations that the",
        f"packed form needs, SmolLM2's generation reached {shares[0]} of it, the update {shares[1]}, the whole round {shares[2]}.",
    ]
    return "\n".join(lines)


def _round(label: str, row: dict[str, Any]) -> str:
    return (
        f"| {label} | {row['seconds']:.3f} s | {row['generate']:.3f} s | {row['update']:.3f} s | {row['tokens_per_s']:.0f} "
        f"| {row['peak_bytes'] / GIGABYTE:.2f} GB |"
    )


def _ratio(label: str, ratios: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return (
        f"| {label} | **{ratios['ratio']:.3f}** | {ratios['ratio_generate']:.3f} | {ratios['ratio_update']:.3f} | "
        f"| {ours['peak_bytes'] / theirs['peak_bytes']:.3f} |"
    )


def _workers(workers: dict[str, Any]) -> str:
    lines = [
        "## Several nano workers on a machine",
        "",
        "| workers | cores | J | node-rounds/s | seconds a round | neither generation nor update |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for run in workers["runs"]:
        lines.append(
            f"| {run['workers']} | {run['cores']} | {run['external']} | {run['node_rounds_per_s']:.2f} "
            f"| {run['round_seconds']:.3f} | {100 * run['other_share']:.1f} % |"
        )
    gains = ", ".join(f"{gain:.2f}" for gain in workers["gains"])
    lines += ["", f"One worker on one core and four on two took turns: the four did {gains} times as many node-rounds a second."]
    return "\n".join(lines)


def _growth(growth: dict[str, Any]) -> str:
    lines = [
        "## How a round of nano grows",
        "",
        "One thread; each line varies one thing around 8 × 8 completions of 24 tokens, prompts of 60.",
        "",
    ]
    for name, rows in growth.items():
        first = next(iter(rows.values()))["seconds"]
        lines.append(
            f"- {name}: "
            + ", ".join(f"{value}: {row['seconds']:.3f} s (× {row['seconds'] / first:.2f})" for value, row in rows.items())
        )
    return "\n".join(lines)


def _overlap(overlap: dict[str, Any]) -> str:
    lines = [
        "## A slow store",
        "",
        f"Every read and listing takes {overlap['operation_seconds']} s. A node that generates meanwhile reads ahead what it will",
        "want; its peers are faster than it, or publish when it does.",
        "",
        "| peers | generates for | reads ahead | waits in a round | reads | listings |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for run in overlap["runs"]:
        ahead = "yes" if run["ahead"] else "no"
        lines.append(
            f"| {run['peers']} | {run['generation']} s | {ahead} | {run['seconds']:.2f} s | {run['reads']:.1f} "
            f"| {run['listings']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a promise does not hold")
    results = load()
    if not parser.parse_args().check:
        PAGE.write_text(page(results))
        print(f"wrote {PAGE}")
        return
    failed = False
    for what, figure, bound, below, holds in verdicts(results):
        failed |= not holds
        print(f"{'ok ' if holds else 'NOT'} {what}: {figure:.3f} ({'at most' if below else 'at least'} {bound:.3g})")
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
