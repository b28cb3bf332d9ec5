"""Does sharing help, how much, and at what cost? The paper's table as real swarms on this machine.

    plan.py         presets, arms, seeds and cells; the rule for the horizon
    split.py        how I and J are given, and how an adaptive node changes them together
    cell.py         one cell: all nodes of a swarm in one process, in the shipped loop
    schedule.py     cells in processes of their own, resumable
    results.py      what a cell leaves behind, and the CSV files
    measures.py     from rounds to figures
    statistics.py   paired permutation test, and the sentence that it allows
    analysis.py     arms against the baseline
    elsewhere.py    the same rows from runs that were done elsewhere
    figures.py      the paper's two figures, and what they leave out
    page.py         one self-contained page
    report.py       everything that is written
    command.py      what the commands `reproduce` and `analyze` do

Nothing here trains or chooses: that is the worker's, whose loop is run as it is shipped.
"""
