"""The deterministic simulation of learners and a faulty broker in virtual time, determined by a seed.

schedule.py       draws a schedule from a seed: contexts and feedback of every kind, and faults
faulty_broker.py  a process's connection to the embedded broker, which injects faults into operations
outside.py        contexts, feedback and records from other clients
processes.py      starts and ends of learner processes, and the broker's timeouts
faults.py         active faults and their effects on calls
tracing.py        counts and traces of events
world.py          runs a schedule
checks.py         the checks after every run, and the comparison with the run without faults, with
reference.py        reference learners
shared_model.py     the checks of a shared model
campaign.py       runs of many seeds: coverage, shrinking, processes
"""
