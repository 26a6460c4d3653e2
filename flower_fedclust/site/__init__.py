"""A deployed site: its operator's policy, a ledger of what left it, and a SuperNode that runs the site's own code.

A site answers a message in five steps, always in this order: judge it by the policy, enter its cost
into the ledger (charge it), compute, keep the answer, send it. Nothing before the charge depends on
rows. If the server repeats a question, the site sends the kept answer again. So a repeated question
costs nothing, and never draws new noise.

- ``policy``: site.toml: what the site answers, and what others may cost it
- ``budget``: whether an answer is within the policy, given the ledger
- ``ledger``: what has left the site, in a file that only grows
- ``studies``: what each run announced, and whether the operator approved or stopped it
- ``kept``: what the site keeps of each run: answers, the client's memory, and the site's own result
- ``app``: the site's client: it asks the policy, charges the ledger, and answers
- ``sample``: a fixed random sample of the rows, for a site that wants less weight than its rows would give it
- ``supernode``: a SuperNode that runs this package, whatever code a server sends
- ``connection``: whether a SuperLink lets the site in
- ``check``: everything that is wrong with a site's setup
- ``metrics``: metrics for Prometheus, and the health of the site
- ``cli``: the commands
"""
