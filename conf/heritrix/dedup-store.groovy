// dedup-store: reports each response to dedupindex that was looked up, was not found, and is in a WARC file now.
//
// It stands behind the WARC writer, so that only records that exist are ever named as originals. The session is made
// by dedup-lookup: where that did not run there is nothing to report.

void process(curi) { context.autowireCapableBeanFactory.getSingleton('dedupSession')?.store(curi) }
