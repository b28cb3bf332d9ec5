"""Estimate the memory of workers before they are started, and say whether so many fit on this machine.

    device.py     where workers compute, and how much memory is there
    shape.py      a model's parameters and sizes, from its config alone
    estimate.py   the parts of one worker: pure arithmetic
    fit.py        so many workers against a device: finding, table
    presets.py    swarms on one GPU by name
    __main__.py   the same from another process, for the launcher

The estimate is for planning, right within a factor of two (docs/operating.md says how it was compared). Importing this package is
cheap: torch is imported where it is used.
"""

from rl_swarm.tools.memory.device import Device, assumed_gpu, host_memory, this_device
from rl_swarm.tools.memory.estimate import PROMPT_TOKENS, Estimate, Part, Workload, estimate, workload_of
from rl_swarm.tools.memory.fit import Report, assess, check, check_apart, gb, refuse_if_too_large, table, verdict
from rl_swarm.tools.memory.presets import PRESETS, Preset, find_preset
from rl_swarm.tools.memory.shape import Shape, shape_of

__all__ = [
    "PRESETS",
    "PROMPT_TOKENS",
    "Device",
    "Estimate",
    "Part",
    "Preset",
    "Report",
    "Shape",
    "Workload",
    "assess",
    "assumed_gpu",
    "check",
    "check_apart",
    "estimate",
    "find_preset",
    "gb",
    "host_memory",
    "refuse_if_too_large",
    "shape_of",
    "table",
    "this_device",
    "verdict",
    "workload_of",
]
