"""Whole jobs in virtual time, against an adversary that a seed makes.

What decides about a job is real: the policy, its fleet, slots and grace time,
the generations and the roster. Processes, hosts, the network and the loop of
hvdrun are models (`processes`, `hosts`, `job`). `adversary` draws what happens
to them, `invariants` says what must hold all the time, and `run` replays a
seed.
"""
