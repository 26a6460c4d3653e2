"""The side of a site: a policy that its operator writes, a ledger of what has left, and a SuperNode of its own code.

``policy``     what the site answers, as its operator wrote it down
``ledger``     what has left the site, in a file that only grows
``budget``     what that comes to, as the site itself computes it
``limits``     what others may cost the site: sizes, numbers and work of messages
``startup``    its rows, and what is found before it starts
``replies``    what is kept of a run: its answers, and what the client remembers
``app``        the client of a site, which asks the policy and writes the ledger
``supernode``  a SuperNode that runs this package's code, whatever a server sends
``cli``        the commands
"""
