"""A deployed site: its operator's policy, a ledger of what left it, and a SuperNode that runs the site's own code.

``policy``      site.toml: what the site answers, and what others may cost it
``budget``      whether an answer is within the policy, given the ledger
``ledger``      what has left the site, in a file that only grows
``kept``        what the site keeps of each run: answers, what the client remembers, and its own result
``app``         the site's client: it asks the policy, charges the ledger, and answers
``supernode``   a SuperNode that runs this package, whatever code a server sends
``cli``         the commands
"""
