#!/usr/bin/env bash
# crawl: wget-AT, asking a dedupindex server for every response.
#
#   DEDUPINDEX_URL=http://127.0.0.1:8484 DEDUPINDEX_CRAWL=weekly \
#     conf/wget-at/crawl.sh --warc-file=weekly --warc-compression-use-zstd https://example.org/
#
# Arguments are those of wget-at; --warc-file is needed. dedupindex.lua beside this file says what else
# the environment may have. wget-AT's own table of digests (--warc-dedup-url-agnostic) is not used: in its
# versions of 2023 it takes different pages for equal. A script of your own (--lua-script) ends with
# dofile(os.getenv("DEDUPINDEX_HOOK")).
set -euo pipefail
export DEDUPINDEX_HOOK DEDUPINDEX_CDX=
DEDUPINDEX_HOOK=$(dirname "$(realpath "$0")")/dedupindex.lua
script=(--lua-script="$DEDUPINDEX_HOOK")
before=
for word in "$@"; do
  [[ $before != --warc-file ]] || DEDUPINDEX_CDX=$word.cdx
  case $word in
    --warc-file=*) DEDUPINDEX_CDX=${word#--warc-file=}.cdx ;;
    --lua-script | --lua-script=*) script=() ;;
  esac
  before=$word
done
if [[ -z $DEDUPINDEX_CDX ]]; then
  echo "give --warc-file=NAME" >&2
  exit 2
fi
exec wget-at "$@" --warc-cdx --warc-dedup-disable "${script[@]}"
