"""The deterministic simulation: learners on a broker that fails, in virtual time, all drawn from one seed.

schedule.py       seed -> what happens when: contexts and feedback of every kind, and faults
faulty_broker.py  a process's connection to the embedded broker; it asks before every operation what goes wrong
outside.py        contexts, feedback and what other clients write
processes.py      learner processes that come and go, and the broker's time-outs
faults.py         what goes wrong with which of their calls
timers.py         what falls due by itself
tracing.py        what happened
world.py          runs a schedule with all of these
checks.py         the checks after every run, with
reference.py        reference learners
faultless.py        the comparison with the run without faults
shared_model.py     the checks of a shared model
campaign.py       seeds by the thousand: coverage, shrinking, processes
"""
