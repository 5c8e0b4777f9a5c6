"""Near-equal pages by datasketch; runs in an environment of its own.

python sketched.py FILE    containment of 0.7 among pages of a host, candidates by MinHashLSH
"""

import json
import re
import sys
from collections import defaultdict

from datasketch import MinHash, MinHashLSH

hosts = defaultdict(list)
with open(sys.argv[1]) as stream:
    for line in stream:
        page = json.loads(line)
        words = re.findall(r"\w+", page["text"].casefold())
        runs = {" ".join(words[at : at + 5]) for at in range(len(words) - 4)}
        hosts[page["url"].split("/")[2]].append((page["timestamp"], runs))
found = 0
for pages in hosts.values():
    lsh = MinHashLSH(threshold=0.7 / (2 - 0.7), num_perm=128)
    hashes = []
    for place, (_, runs) in enumerate(pages):
        made = MinHash(num_perm=128)
        made.update_batch([run.encode() for run in runs])
        lsh.insert(place, made)
        hashes.append(made)
    for place, (moment, runs) in enumerate(pages):
        for other in lsh.query(hashes[place]):
            other_moment, others = pages[other]
            if place != other and moment <= other_moment:
                found += 10 * len(runs & others) >= 7 * len(runs)
print(json.dumps({"pairs": found}))
