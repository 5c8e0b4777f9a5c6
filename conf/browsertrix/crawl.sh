#!/usr/bin/env bash
# crawl: browsertrix-crawler in its container, with the Redis that bin/export --redis writes to.
#
#   DEDUPINDEX_REDIS=redis://redis.example:6379/0 conf/browsertrix/crawl.sh --url https://example.org/
#
# The address must be one that the container reaches: there 127.0.0.1 is the crawler's own Redis, in
# which it keeps its state. WACZs go to ./crawls/collections. Arguments are the crawler's.
set -euo pipefail
: "${DEDUPINDEX_REDIS:?set it to the address that bin/export --redis was given}"
image=${DEDUPINDEX_BROWSERTRIX:-webrecorder/browsertrix-crawler:1.14.1}
exec docker run --rm -v "$PWD/crawls:/crawls" "$image" \
  crawl --redisDedupeUrl "$DEDUPINDEX_REDIS" --generateWACZ "$@"
