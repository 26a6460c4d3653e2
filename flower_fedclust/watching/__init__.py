"""Runs that are watched from outside, for tests and audits.

``runs``  a run whose wire is watched
``subject``  a strategy, and small tables to try it on
``neighbours``  how far one record, or one client, moves what is released
"""
