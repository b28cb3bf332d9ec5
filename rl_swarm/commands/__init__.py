"""What is typed after `rl-swarm`: one function a command, in modules by what one wants to do. Its work is in `tools/` and `runs/`.

    start.py     demo, swarm, work, coordinate, node, join
    look.py      status, logs, report
    use.py       chat, ask, export
    check.py     doctor, probe, memory, config, validate
    keep.py      experiments, prune
    study.py     reproduce, analyze

    group.py     how every command behaves: a flag for each setting, a short help, errors in one line
    common.py    steps that several commands share: load settings, open a run, print
    options.py   check what is typed
    typed.py     commands to paste: how to go on, and what to do with a finished run

Each command imports what it needs where it needs it, so that it starts fast.
"""
