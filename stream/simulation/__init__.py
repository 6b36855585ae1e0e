"""The deterministic simulation: learners on a broker that fails, in virtual time, all drawn from one seed.

schedule.py       seed -> what happens when: contexts and feedback of every kind, and faults
faulty_broker.py  a process's connection to the embedded broker; it asks before every operation what goes wrong
outside.py        contexts, feedback and what other clients write
processes.py      learner processes that come and go, and the broker's time-outs
faults.py         what goes wrong with which of their calls
timers.py         what falls due by itself
tracing.py        what happened
world.py          runs a schedule with all of these
oracle.py         what must have become of every record, from what was sent and from times alone
checks.py         what must hold after every run, with
dates.py            when decisions are dated, and
faultless.py        what a run has in common with the one without faults
shared_model.py     what a model that all tasks share must be
campaign.py       seeds by the thousand: coverage, shrinking, processes
"""
