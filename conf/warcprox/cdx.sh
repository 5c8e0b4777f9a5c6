#!/usr/bin/env bash
# cdx.sh: warcprox with its own CDX deduplication; options of warcprox may follow.
#
#   DEDUPINDEX_URL=http://127.0.0.1:8484 conf/warcprox/cdx.sh -p 8000 -d warcs -z
exec warcprox --base32 -g sha1 \
  --cdxserver-dedup "${DEDUPINDEX_URL:-http://127.0.0.1:8484}/cdx" "$@"
