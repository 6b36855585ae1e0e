"""The deterministic simulation: learners on a broker that fails, in virtual time, all drawn from one seed.

schedule.py       seed -> what happens when: contexts and feedback of every kind, and faults
faulty_broker.py  a process's connection to the embedded broker; it asks before every operation what goes wrong
world.py          runs a schedule: processes that crash, pause, come and go, and the broker's time-outs
oracle.py         what must have become of every record, from what was sent and from times alone
checks.py         what must hold after every run
campaign.py       seeds by the thousand: coverage, shrinking, processes
"""
