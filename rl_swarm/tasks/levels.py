"""The difficulty levels of a task: as named, the `easy` preset's, and those of reasoning-gym's curriculum.

Every level is a TaskSpec that TASKS can express. It may still be unable to make questions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from rl_swarm.tasks.bench import gym
from rl_swarm.tasks.spec import TASK_PRESETS, TaskSpec, parse_tasks


def candidates(named: Sequence[TaskSpec]) -> list[TaskSpec]:
    """Every task as named, then the easiest level of each, and so on: when time is short, no task is left out."""
    found = {spec.id: spec for spec in named}
    for row in zip_longest(*map(other_levels, named)):
        for spec in filter(None, row):
            found.setdefault(spec.id, spec)
    return list(found.values())


def other_levels(spec: TaskSpec) -> list[TaskSpec]:
    """Other difficulty levels of a task, easier ones first: the `easy` preset's, smaller numbers, reasoning-gym's curriculum.

    Takes the two lowest levels and the middle one of a long curriculum. Parameters that it does not govern stay as named. Own tasks
    and tasks without a curriculum have no other level."""
    factory = gym("factory")
    if spec.path is not None or not factory.has_curriculum(spec.name):
        return []
    defaults = vars(factory.DATASETS[spec.name][1]())
    curriculum = factory.create_curriculum(spec.name)
    steps = curriculum_steps(curriculum)
    kept = {name: value for name, value in spec.config.items() if name not in steps[0]}

    def specs(configs: list[dict[str, Any]]) -> list[TaskSpec]:
        changed = [{name: value for name, value in config.items() if value != defaults[name]} for config in configs]
        made = [replace(spec, config=kept | config) for config in changed]
        return list({each.id: each for each in made if each.id != spec.id}.values())

    easy = [replace(each, weight=spec.weight) for each in parse_tasks(TASK_PRESETS["easy"]) if each.name == spec.name]
    below, climb = specs(shrunk_ranges(curriculum, defaults, steps[0], spec.config)), specs(steps)
    return easy + below + [climb[place] for place in sorted({0, 1, len(climb) // 2}) if place < len(climb)]


def curriculum_steps(curriculum: Any) -> list[dict[str, Any]]:
    """The parameters that a curriculum of reasoning-gym sets, from the lowest level to the highest."""
    attributes, steps = curriculum.attributes.values(), []
    names = [name for each in attributes for name in _parameters(each)]
    for level in range(max(len(each.levels) for each in attributes)):
        curriculum.set_global_level(level)
        config = curriculum.generate_configuration()
        steps.append({name: getattr(config, name) for name in names})
    return steps


def shrunk_ranges(
    curriculum: Any, defaults: Mapping[str, Any], lowest: Mapping[str, Any], named: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A level below a curriculum that begins no lower than the task's defaults (base_conversion, binary_matrix), if there is one.

    Cuts ranges of whole numbers that were not named to the square root of their width: that halves the digits of large ones."""
    config, shrunk = {**defaults, **named}, {}
    for names in map(_parameters, curriculum.attributes.values()):
        low, high = config[names[0]], config[names[-1]]
        whole = isinstance(low, int) and isinstance(high, int)
        if len(names) == 2 and whole and low < high and not set(names) & named.keys():
            shrunk[names[1]] = low + math.isqrt(high - low)
    begins_high = any(lowest[name] >= config[name] for name in shrunk)
    return [{name: config[name] for name in lowest} | shrunk] if begins_high else []


def _parameters(attribute: Any) -> list[str]:
    """The one parameter that an attribute of a curriculum sets, or the two ends of a range."""
    if hasattr(attribute, "upper_field_name"):
        return [attribute.lower_field_name, attribute.upper_field_name]
    return [attribute.field_name]
