#!/usr/bin/env bash
# plugin.sh: warcprox with the dedupindex plugin; options of warcprox may follow, also
# --dedup-min-text-size, --dedup-min-binary-size and --dedup-only-with-bucket, which hold for it too.
#
#   DEDUPINDEX_URL=http://127.0.0.1:8484 DEDUPINDEX_CRAWL=weekly conf/warcprox/plugin.sh -p 8000 -d warcs -z
#
# warcprox is the one on PATH. Its environment needs nothing of ours: dedupindex.client comes from
# the checkout that this file is in.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
export PYTHONPATH=$here:$(dirname "$(dirname "$here")")${PYTHONPATH:+:$PYTHONPATH}
exec warcprox --base32 -g sha1 --dedup-db-file=/dev/null \
  --plugin dedupindex_warcprox.Lookup --plugin dedupindex_warcprox.Store "$@"
