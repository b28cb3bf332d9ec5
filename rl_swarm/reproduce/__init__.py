"""Does sharing help, how much, and at what cost? The paper's table as real swarms on this machine.

plan.py         presets, splits, arms, seeds and cells; the rule for the horizon
cell.py         one cell: all nodes of a swarm in one process, in the shipped loop
schedule.py     cells in processes of their own, resumable
results.py      the records of a cell, and the figures that follow from them
elsewhere.py    the same from experiments that were run elsewhere
permutation.py  paired permutation test, and the sentence that it allows
analysis.py     arms against the baseline
figures.py      the paper's two figures, and three that it leaves out
table.py        the report: CSV, JSON, figures and one page
command.py      the commands `reproduce` and `analyze`
"""
