#!/usr/bin/env bash
# crawl: Zeno, asking a dedupindex server for every response.
#
#   DEDUPINDEX_URL=http://127.0.0.1:8484 DEDUPINDEX_CRAWL=weekly conf/zeno/crawl.sh https://example.org/ --job weekly
#
# Arguments are those of `zeno get url`. Without sha1 Zeno would ask nobody, and not say so. With
# DEDUPINDEX_CRAWL its lookups are those of that crawl, which is begun if need be (with
# DEDUPINDEX_TOKEN, where the server wants a token for that); bin/report then says what it saved.
set -euo pipefail
server=${DEDUPINDEX_URL:-http://127.0.0.1:8484}
if [[ -n ${DEDUPINDEX_CRAWL:-} ]]; then
  if [[ ! $DEDUPINDEX_CRAWL =~ ^[A-Za-z0-9._~-]+$ ]]; then
    echo "DEDUPINDEX_CRAWL is a part of an address: letters, digits, dots, hyphens and underscores" >&2
    exit 2
  fi
  header=
  [[ -z ${DEDUPINDEX_TOKEN:-} ]] || header="header = \"Authorization: Bearer $DEDUPINDEX_TOKEN\""
  if curl --config - --silent --show-error --fail --max-time 10 --output /dev/null \
    --data-urlencode "name=$DEDUPINDEX_CRAWL" "$server/crawls" <<<"$header"; then
    server+=/crawls/$DEDUPINDEX_CRAWL
  else
    echo "crawl $DEDUPINDEX_CRAWL could not be begun: Zeno asks all the same, and is in no report" >&2
  fi
fi
exec zeno get url "$@" --warc-digest-algorithm sha1 --warc-doppelganger-dedupe-server "$server"
