#!/usr/bin/env bash
# crawl: Zeno, asking a dedupindex server for every response.
#
#   DEDUPINDEX_URL=http://127.0.0.1:8484 conf/zeno/crawl.sh https://example.org/ --job weekly
#
# Arguments are those of `zeno get url`. Without sha1 Zeno would ask nobody, and not say so.
set -euo pipefail
exec zeno get url "$@" --warc-digest-algorithm sha1 \
  --warc-doppelganger-dedupe-server "${DEDUPINDEX_URL:-http://127.0.0.1:8484}"
