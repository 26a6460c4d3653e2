"""A deployed site: its operator's policy, a ledger of what left it, and a SuperNode that runs the site's own code.

``policy``      site.toml: what the site answers, and limits
``budget``      whether an answer is within the policy, given the ledger
``limits``      what others may cost the site: size, number and work of messages
``ledger``      what has left the site, in a file that only grows
``kept``        what the site keeps of each run: answers, and what the client remembers
``app``         the site's client: it asks the policy, charges the ledger, and answers
``own_result``  the site's own result of a run: model, labels, report
``supernode``   a SuperNode that runs this package, whatever code a server sends
``cli``         the commands
"""
