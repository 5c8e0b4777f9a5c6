// dedup-store: tells dedupindex of each response that was looked up, was not found, and is in a WARC file now.
//
// It stands behind the WARC writer, so that only records that exist are ever named as originals. The session is made
// by dedup-lookup: where that did not run there is nothing to tell.

void process(curi) {
    if (curi.isRevisit() || !curi.hasContentDigestHistory()) return
    def written = curi.getContentDigestHistory()
    if (written.isEmpty()) return                      // the writer left it out
    def dedup = context.autowireCapableBeanFactory.getSingleton('dedupSession')
    dedup?.report([
        digest: curi.getContentDigestSchemeString(), url: written['original-url'], date: written['content-written-date'],
        record_id: written['warc-record-id'], container: written['warc-filename'], offset: written['warc-file-offset'],
        mime: curi.getContentType(), status: curi.getFetchStatus(), size: curi.getContentLength(),
        covers: dedup?.coversOf(curi),
    ])
}
