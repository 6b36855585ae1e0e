"""A deterministic simulation of learners and a faulty broker, in virtual time and reproducible from a seed.

schedule.py       generates a schedule from a seed, with all kinds of contexts, feedback and faults
faulty_broker.py  a process's connection to the embedded broker, with injected faults
outside.py        other clients, which send contexts, feedback, and unexpected records
processes.py      starts, stops and restarts learner processes, and applies the broker's timeouts
retention.py      deletes old records, and restores them for the checks
faults.py         active faults and their effects on calls
tracing.py        event counts and traces
world.py          runs a schedule
moves.py          moves a pipeline in the middle of a run, and checks both pipelines
checks.py         checks every run and compares it with a run without faults
partitions.py     audits each partition with a reference learner
reference.py      the reference learners
shared_model.py   additional checks for a shared model
campaign.py       runs many seeds in parallel, measures their coverage, and shrinks failing schedules
"""
