// Deduplication against a dedupindex server, for a stock Heritrix 3: see dedup-beans.xml.
//
// It is compiled once, by bin/heritrix-profile or when Heritrix builds the job; all threads of the crawl share its objects.
// Whatever goes wrong, the response is stored in full: neither an answer of the server nor the lack of one can keep Heritrix from
// storing a payload that was not found.
//
// Even in statically compiled classes Groovy calls some operators dynamically: casts, also those of values from collections
// (map.get, for of a list, ThreadLocal.get), == of enums, a string as a condition, intdiv, array[i], closures, "as". Java needs
// seconds to make such calls fast, so what runs for each response has none of them.

import groovy.transform.CompileStatic
import groovy.transform.stc.POJO
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.StandardCopyOption
import java.nio.file.StandardOpenOption
import java.security.MessageDigest
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.ScheduledExecutorService
import java.util.concurrent.ThreadFactory
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicLong
import java.util.logging.Level
import java.util.logging.Logger
import java.util.regex.Pattern
import java.util.regex.PatternSyntaxException
import javax.net.ssl.SSLParameters
import javax.net.ssl.SSLSocket
import javax.net.ssl.SSLSocketFactory
import org.apache.http.client.config.RequestConfig
import org.apache.http.client.methods.CloseableHttpResponse
import org.apache.http.client.methods.HttpGet
import org.apache.http.client.methods.HttpPost
import org.apache.http.client.methods.HttpRequestBase
import org.apache.http.entity.ByteArrayEntity
import org.apache.http.entity.ContentType
import org.apache.http.impl.NoConnectionReuseStrategy
import org.apache.http.impl.client.CloseableHttpClient
import org.apache.http.impl.client.HttpClients
import org.apache.http.impl.client.StandardHttpRequestRetryHandler
import org.apache.http.util.EntityUtils
import org.archive.checkpointing.Checkpoint
import org.archive.crawler.event.CrawlStateEvent
import org.archive.crawler.reporting.StatisticsTracker
import org.archive.modules.CoreAttributeConstants
import org.archive.modules.CrawlMetadata
import org.archive.modules.CrawlURI
import org.archive.modules.DispositionChain
import org.archive.modules.FetchChain
import org.archive.modules.Processor
import org.archive.modules.ProcessorChain
import org.archive.modules.deciderules.DecideResult
import org.archive.modules.fetcher.FetchStatusCodes
import org.archive.modules.recrawl.RecrawlAttributeConstants
import org.archive.modules.revisit.IdenticalPayloadDigestRevisit
import org.archive.modules.revisit.ServerNotModifiedRevisit
import org.archive.modules.writer.WriterPoolProcessor
import org.archive.spring.ConfigPath
import org.archive.util.ArchiveUtils
import org.json.JSONArray
import org.json.JSONObject
import org.springframework.beans.FatalBeanException
import org.springframework.beans.factory.DisposableBean
import org.springframework.context.ApplicationContext
import org.springframework.context.ApplicationContextAware
import org.springframework.context.ApplicationListener
import org.archive.spring.PathSharingContext

/** What all threads of a crawl share: the connections, whether the server answers, and the captures to report. */
@CompileStatic
@POJO
class DedupClient implements ApplicationContextAware, ApplicationListener<CrawlStateEvent>, DisposableBean {
    private static final int LOOKUP_TIMEOUT = 2000, WRITE_TIMEOUT = 5000, FILTER_TIMEOUT = 30_000     // milliseconds
    private static final int REPORT_EVERY = 100                               // milliseconds
    private static final int BATCH = 500, MOST_WAITING = 10_000               // captures to report
    private static final int CONNECTIONS = 200                                // at most; a thread of Heritrix uses one
    private static final int ATTEMPTS = 2              // to end the crawl at a server that is there
    private static final long LONGEST_AWAY = 30_000, AGAIN = 1000             // to wait for a server at the end, and between two attempts; milliseconds
    private static final int LONGEST_END = 60          // seconds for which Heritrix waits for the end
    private static final int MOST_OF_PATH = 150, MOST_OF_TEXT = 300           // characters in a line of the log
    private static final long COUNTED = 2000                                  // until all workers of a server have written their counts
    // While the server is away it is probed, with the numbers of all our clients: see docs/crawlers.md. Milliseconds.
    private static final int FAILURES = 5, SHARE = 10
    private static final long SHORTEST = 1000, LOST = 60_000
    private static final List<Integer> REFUSED = [400, 409, 413, 414, 429]    // one request, which says nothing about the next
    private static final List<Integer> REFUSED_OFTEN = [400, 409, 429]        // logged once

    private static final Logger LOG = Logger.getLogger('org.archive.dedupindex')

    final AtomicLong lookups = new AtomicLong(), duplicates = new AtomicLong(), reported = new AtomicLong()
    final AtomicLong notLookedUp = new AtomicLong(), notReported = new AtomicLong(), revisitsNotReported = new AtomicLong(), answeredByFilter = new AtomicLong()
    final AtomicLong leftOut = new AtomicLong()        // responses that the rule of dedupLookup leaves out
    final AtomicLong truncated = new AtomicLong()      // responses of which Heritrix has fetched a part
    final AtomicLong notModified = new AtomicLong(), notFetched = new AtomicLong()   // answers 304, and the bytes of their originals

    private PathSharingContext context
    private DedupSettings settings
    private String server, token, covers, namespace
    private long quiet                                 // the longest pause between two probes
    private String crawl, crawlParameters              // known once the job was launched
    private CloseableHttpClient http
    private KeptConnections connections                // null: HttpClient sends everything
    private ScheduledExecutorService reporter, renewer
    private DedupFilter filter                         // null: everything is asked
    private String countsSent = ''
    private String lookupProblem = '', storeProblem = ''   // what is wrong with the places of dedupLookup and dedupStore
    private String nameTaken = ''                      // why the server does not take the crawl: it knows the name
    private String stranger = ''                       // why the crawl has not begun: there is no dedupindex
    private String notBegunBecause = ''                // the reason of the last attempt to begin the crawl
    DedupLookup unusedLookup                           // it stands where it looks nothing up; null: it does, or there is none
    private boolean countUnknown                       // how many responses are not looked up, as it is in no right place
    private volatile Refusal refusals                  // of the index, of captures that were reported

    private final List<Processor> ours = new ArrayList<Processor>()   // of the chains
    private final Set<Integer> logged = ConcurrentHashMap.newKeySet()
    private final Object beginning = new Object()
    private volatile boolean begun
    private volatile boolean keepsLast = true          // whether the server knows the last captures of URLs
    volatile boolean conditional                       // whether a processor asks for them
    private volatile int failures                      // in a row
    private volatile Exception failure                 // the last of them
    private long since, until                          // the first of them, and when the next probe may be sent

    private final Object waiting = new Object()        // the lock of the captures to be reported:
    private Capture oldest, newest
    private int count
    private long sent                                  // captures that are not among them any more
    private final Set<String> waitingDigests = ConcurrentHashMap.newKeySet()
    private final Object reporting = new Object()      // one report at a time; the lock of:
    private Exception reportProblem                    // why the server refuses reports, though it may answer lookups; null: it does not
    private long refusedSince, refusedUntil            // the first of them, and when the next may be sent

    @CompileStatic
    @POJO
    private static class Capture {
        final String digest, json
        final boolean stored                           // in full; what is reported of a revisit is its URL's last state
        Capture next
        Capture(String digest, String json, boolean stored) { this.digest = digest; this.json = json; this.stored = stored }
    }

    /** How many captures the rules of the index refused for a reason; of each reason there is one. */
    @CompileStatic
    @POJO
    private static class Refusal {
        final String reason
        final Refusal next
        volatile long count
        Refusal(String reason, Refusal next) { this.reason = reason; this.next = next }
    }

    @CompileStatic
    @POJO
    private static class Daemons implements ThreadFactory {
        final String name
        Daemons(String name) { this.name = name }

        Thread newThread(Runnable work) {
            Thread thread = new Thread(work, name)
            thread.setDaemon(true)
            return thread
        }
    }

    /** Our server answers that it cannot do this; it may be able to do other things. */
    @CompileStatic
    @POJO
    private static class ServerError extends IOException {
        ServerError(String message) { super(message) }
    }

    /** The server refuses the token, or that there is none. */
    @CompileStatic
    @POJO
    private static class Forbidden extends ServerError {
        final int status
        final String reason                            // of the server
        Forbidden(int status, String reason, String message) { super(message); this.status = status; this.reason = reason }
    }

    /** What answers is no dedupindex, or has it at another path. */
    @CompileStatic
    @POJO
    private static class Stranger extends IOException {
        Stranger(String message) { super(message) }
    }

    /** The server refused this one request; that says nothing about the next. */
    @CompileStatic
    @POJO
    private static class Refused extends IOException {
        final int status
        Refused(int status, String message) { super(message); this.status = status }
    }

    void setApplicationContext(ApplicationContext applicationContext) {
        context = (PathSharingContext) applicationContext
        settings = new DedupSettings((Properties) context.getBean('dedup'))
        server = setting('server').replaceAll('/+$', '')
        token = setting('token')
        namespace = setting('namespace')
        quiet = 1000L * settings.quietSeconds
        long renew = settings.digestFilter
        // The filter does not have what is in a namespace.
        if (renew > 0 && namespace.isEmpty()) filter = new DedupFilter(this, renew)
        // A connection is never kept: HttpClient takes what comes unasked on one as the answer to the next request.
        http = HttpClients.custom().setDefaultRequestConfig(timeouts(LOOKUP_TIMEOUT))
            .setConnectionReuseStrategy(NoConnectionReuseStrategy.INSTANCE)
            .setMaxConnPerRoute(CONNECTIONS).setMaxConnTotal(CONNECTIONS)
            .setRetryHandler(new StandardHttpRequestRetryHandler(1, false))
            .disableCookieManagement().disableRedirectHandling().disableContentCompression().disableAuthCaching()
            .build()
        URI address = new URI(server)
        if (address.host != null) connections = new KeptConnections(address, token, LOOKUP_TIMEOUT)
    }

    /** The processor that asks what was seen last of a URL; it stands before FetchHTTP. */
    Processor newConditions() { own(new DedupConditions(this, settings.fetchInFull)) }

    /** The processor that makes revisits of answers 304; it stands behind FetchHTTP. */
    Processor newNotModified() { own(new DedupNotModified(this)) }

    /** The processor that looks responses up; it stands behind the fetchers. */
    Processor newLookup() { own(new DedupLookup(this)) }

    /** The processor that reports what was stored; it stands behind the WARC writer. */
    Processor newStore() { own(new DedupStore(this)) }

    private Processor own(Processor processor) {
        ours.add(processor)
        return processor
    }

    private String setting(String name) { settings.text(name) }

    static String encoded(String value) { URLEncoder.encode(value, 'UTF-8') }

    /**
     * What the digest of a response covers if that differs from what the crawl says of all: without a transfer coding
     * the body as stored and the entity are the same.
     */
    static String coversOf(CrawlURI curi) {
        if (curi.getHttpResponseHeader('Transfer-Encoding') != null) return null
        return 'both'
    }

    /**
     * The original of a response; `Original.NONE` if there is none, null if nobody knows.
     * Captures that wait to be reported are reported first if one has this digest: the server then decides about them, too.
     */
    Original original(CrawlURI curi, String digest) {
        if (filter != null && begun && filter.lacks(digest, curi.getContentDigest())) {
            answeredByFilter.incrementAndGet()
            lookups.incrementAndGet()
            return Original.NONE
        }
        if (failures == 0 && waitingDigests.contains(digest)) flush()
        Original found = null
        try {
            if (mayTry()) {
                if (!begun) begin()
                StringBuilder path = new StringBuilder('/lookup?digest=').append(digest).append('&url=').append(encoded(curi.getURI()))
                String covers = coversOf(curi), mime = curi.getContentType()
                if (covers != null) path.append('&covers=').append(covers)
                if (mime != null) path.append('&mime=').append(encoded(mime))
                path.append('&size=').append(curi.getContentSize())     // with headers, as in Heritrix's own reports
                found = Original.read(lookup(path.append(crawlParameters).toString()))
                answered()
            }
        } catch (Exception e) {
            failed('not looked up', e)
        }
        if (found == null) {
            notLookedUp.incrementAndGet()
            return null
        }
        lookups.incrementAndGet()
        if (found.exists()) duplicates.incrementAndGet()
        return found
    }

    /**
     * What `Original.read` reads: the conditions on which a URL need not be fetched again, and the original of the revisit
     * that a 304 becomes. Null if there are none, or nobody knows: then it is fetched in full.
     */
    String last(String url) {
        if (!keepsLast) return null
        try {
            if (!mayTry()) return null
            if (!begun) begin()
            StringBuilder path = new StringBuilder('/last?url=').append(encoded(url)).append('&crawl=').append(crawl)
            String found = lookup(path.append(parameter('max_age', 'maxAge')).toString())
            Original.read(found)                       // it is whole
            answered()
            return found
        } catch (Refused e) {
            answered()
            if (e.status != 409) {
                failed('fetched in full', e)
            } else if (logged.add(-3)) {
                keepsLast = false
                log(Level.WARNING, 'every URL is fetched in full, because the server does not know what was seen last: ' + e.message)
            }
        } catch (Exception e) {
            failed('fetched in full', e)
        }
        return null
    }

    /** As `send`, but over the connection that this thread keeps, if the answer is as simple as those of our server. */
    private String lookup(String path) {
        Answer answer = connections?.get(path, LOOKUP_TIMEOUT)
        if (answer == null) return send(new HttpGet(server.concat(path)))
        return content(answer.status, answer.text, 'GET', path)
    }

    /** Take note of a capture that was written, `raw` null if as a revisit; it is reported soon. When too many wait, it is only counted. */
    void report(String digest, byte[] raw, Row capture) {
        if (raw != null) filter?.add(digest, raw)
        synchronized (waiting) {
            if (count >= MOST_WAITING) {
                (raw == null ? revisitsNotReported : notReported).incrementAndGet()
                return
            }
            Capture added = new Capture(digest, capture.json(), raw != null)
            if (newest == null) oldest = added
            else newest.next = added
            newest = added
            count = count + 1
            waitingDigests.add(digest)
            if (reporter == null) {
                reporter = Executors.newSingleThreadScheduledExecutor(new Daemons('dedupindex reporter'))
                reporter.scheduleWithFixedDelay(this::flush, REPORT_EVERY, REPORT_EVERY, TimeUnit.MILLISECONDS)
            }
        }
    }

    /** Fetch the filter now, and renew it while the crawl runs; no lookup waits for it. */
    private void startFilter() {
        renewer = Executors.newSingleThreadScheduledExecutor(new Daemons('dedupindex filter'))
        renewer.scheduleWithFixedDelay(this::renew, 0L, filter.renewMilliseconds, TimeUnit.MILLISECONDS)
    }

    private void renew() {
        try {
            filter.renew()
            if (!filter.exists() && logged.add(-2)) {
                log(Level.WARNING, 'the server has no digest filter (bin/index --digest-filter makes one); until it has, every response is looked up')
            }
            String counts = selfReport().text()
            if (begun && !counts.equals(countsSent)) post('/crawls/' + crawl + '/counts', counts, FORM)
            countsSent = counts
        } catch (Exception e) {                        // the filter is as it was, and in the end not used any more
            if (logged.add(-1)) log(Level.WARNING, 'the digest filter was not renewed; further failures are not logged: ' + messageOf(e))
        }
    }

    /** What only this client knows of the crawl. */
    private Form selfReport() {
        Form counts = new Form()
        if (!countUnknown) counts.put('not_looked_up', notLookedUp)
        counts.put('not_reported', notReported)
        if (filter != null) counts.put('answered_by_filter', answeredByFilter)
        return counts.put('left_out_by_rule', leftOut)
    }

    /**
     * Report what waits now, if the server answers. What other threads add meanwhile is left to the next report: a lookup
     * that waits for this one must not wait for their pages.
     */
    void flush() { reportWaiting(false) }

    /** As `flush`, also while the server is only probed or has just refused a report: a pause, a checkpoint and the end do not wait. */
    void flushNow() { reportWaiting(true) }

    private void reportWaiting(boolean now) {
        int before = failures
        long last
        synchronized (waiting) { last = sent + count }
        synchronized (reporting) {
            if (failures > before) return              // the thread that was waited for has just met the failure
            if (!now && reportProblem != null && milliseconds() < refusedUntil) return
            while (true) {
                int size = 0, stored = 0
                StringBuilder lines = new StringBuilder()
                synchronized (waiting) {
                    if (sent >= last) return           // also by the thread that was waited for
                    for (Capture capture = oldest; capture != null && size < BATCH; capture = capture.next) {
                        lines.append(capture.json).append('\n')
                        size++
                        if (capture.stored) stored++
                    }
                }
                if (!now && !mayTry()) return
                if (!sendReport(lines.toString(), size, stored)) return
                synchronized (waiting) { forget(size) }
            }
        }
    }

    /** Take away the oldest captures that wait; the caller has their lock. */
    private void forget(int size) {
        Capture next = oldest
        for (int left = size; left > 0; left--) next = next.next
        Set<String> others = new HashSet<String>()
        for (Capture capture = next; capture != null; capture = capture.next) others.add(capture.digest)
        for (Capture capture = oldest; capture !== next; capture = capture.next) {
            if (!others.contains(capture.digest)) waitingDigests.remove(capture.digest)
        }
        oldest = next
        if (next == null) newest = next                // null itself would be cast
        count = count - size
        sent = sent + size
    }

    /** Report a batch, of which so many are stored in full, others as revisits; false if it must wait. */
    private boolean sendReport(String lines, int size, int stored) {
        try {
            if (!begun) begin()
            JSONObject answer = new JSONObject(post('/captures?crawl='.concat(crawl), lines, LINES))
            answered()
            reportAccepted()
            long bad = Math.min(answer.optLong('bad'), (long) stored)
            notReported.addAndGet(bad)
            reported.addAndGet(stored - bad)
            countRefused(answer.optJSONObject('refused'))
            return true
        } catch (Exception e) {
            if (begun && failures == 0 && e instanceof ServerError) reportRefused(e)
            else failed('not reported', e)
            if (!(e instanceof Refused) || ((Refused) e).status == 429) return false
            notReported.addAndGet(stored)
            revisitsNotReported.addAndGet(size - stored)
            return true
        }
    }

    /**
     * The server refuses reports, and may go on answering lookups: they often need no token, and no room on its disk. The next
     * answer to a lookup would end an outage, so this is not counted as one; but it is logged once and tried again as in one.
     */
    private void reportRefused(Exception e) {
        long now = milliseconds()
        if (reportProblem == null) {
            refusedSince = now
            String because = e instanceof Forbidden ? ', because the server ' + tokenProblem((Forbidden) e) + ' (read at the next launch)' : ''
            log(Level.SEVERE, 'not reported' + because + '. Until the server accepts reports again, no lookup finds what this crawl stores from now on: ' + server + ': ' + messageOf(e))
        }
        reportProblem = e
        refusedUntil = now + pause(now - refusedSince)
    }

    private void reportAccepted() {
        if (reportProblem == null) return
        reportProblem = null
        log(Level.INFO, server + ' accepts reports again, also of what waited; not reported in this crawl: ' + notReported)
    }

    /** Add to `refusals` what the answer to a report has; one report at a time. */
    private void countRefused(JSONObject reasons) {
        if (reasons == null) return
        Iterator<String> names = reasons.keys()
        while (names.hasNext()) {
            String name = String.valueOf(names.next())
            Refusal known = refusals
            while (known != null && !known.reason.equals(name)) known = known.next
            if (known == null) {
                known = new Refusal(name, refusals)
                refusals = known
            }
            known.count = known.count + reasons.optLong(name)
        }
    }

    /** A line of the log, under a name of ours: Java would take the one of Groovy's dispatcher. */
    private static void log(Level level, String message) {
        LOG.logp(level, 'dedupindex.DedupClient', 'log', 'dedup: ' + message)
        if (isExiting()) System.err.println('dedup: ' + message)
    }

    /** Whether Java is ending, as with `-r` when the crawl is over: its logs may be closed before we are done. */
    private static boolean isExiting() {
        Thread hook = new Thread()
        try {
            Runtime.runtime.addShutdownHook(hook)
            Runtime.runtime.removeShutdownHook(hook)
            return false
        } catch (IllegalStateException e) {
            return true
        }
    }

    private void begin() {
        int before = failures
        synchronized (beginning) {
            if (begun) return
            if (failures > before) throw new IOException('another thread has just failed to begin the crawl')
            if (crawl == null) identify()
            Form fields = new Form().put('name', crawl).put('seen_by', setting('seenBy')).put('digest_covers', covers)
            if (!namespace.isEmpty()) fields.put('namespace', namespace)
            try {
                String answer = post('/crawls', fields.text(), FORM)
                if (answer == null || !answer.startsWith('{')) throw new Stranger('POST /crawls was answered ' + (answer == null ? '204' : '200 ' + line(answer)))
            } catch (Exception e) {
                if (e instanceof Refused && ((Refused) e).status == 409) nameTaken = e.message
                if (e instanceof Stranger) stranger = 'there is no dedupindex at ' + server + ': set "server" in dedup-beans.xml to the address that bin/serve prints'
                // A crawl that is being stopped interrupts requests: that is no reason of the server.
                if (!Thread.currentThread().isInterrupted()) notBegunBecause = problemOf(e)
                throw e
            }
            begun = true
            stranger = ''
            if (filter != null && renewer == null) startFilter()
        }
        String within = namespace.isEmpty() ? '' : ' in the namespace ' + namespace
        log(Level.INFO, 'crawl ' + crawl + ' has begun at ' + server + within + ', digests are of the ' + covers + ' body')
    }

    /** Read what is known once the job was launched. */
    private void identify() {
        // FetchHTTP takes its digest with the chunk framing of the transfer, FetchHTTP2 without.
        covers = setting('digestCovers')
        if ('auto'.equals(covers)) covers = isFetchHttp2() ? 'entity' : 'stored'
        // A launch has its own id, so no two launches of a job are taken for one crawl.
        String name = (jobName() + '-' + context.currentLaunchId).replaceAll('[^A-Za-z0-9._-]', '_')
        crawlParameters = '&crawl=' + name + parameter('strategy', 'searchStrategy') + parameter('max_age', 'maxAge')
        crawl = name
    }

    private String jobName() { ((CrawlMetadata) context.getBean('metadata')).getJobName() }

    private boolean isFetchHttp2() {
        for (String name : context.beanDefinitionNames) if ('FetchHTTP2'.equals(context.getType(name)?.simpleName)) return true
        return false
    }

    private String parameter(String name, String setting) {
        String value = this.setting(setting)
        return value.isEmpty() ? '' : '&' + name + '=' + encoded(value)
    }

    /** Whether to ask now. After `FAILURES` failures in a row one thread probes the server, and all others go on without it. */
    private boolean mayTry() {
        if (failures < FAILURES) return true
        synchronized (this) {
            long now = milliseconds()
            if (now < until) return false
            until = now + LOST                         // nobody else, until this probe has ended
            return true
        }
    }

    private void failed(String consequence, Exception e) {
        if (e instanceof Refused) {
            answered()
            int status = ((Refused) e).status
            boolean often = status in REFUSED_OFTEN
            boolean report = consequence.startsWith('not reported')    // a refused lookup must not hide a lost batch
            if (!often || logged.add(report ? 1000 + status : status)) {
                log(Level.WARNING, consequence + ': ' + e.message + (often ? '; further answers ' + status + ' are only counted' : ''))
            }
            return
        }
        if (e instanceof InterruptedIOException && Thread.currentThread().isInterrupted()) return   // the crawl is being stopped
        unanswered(consequence, e)
    }

    /** Why a crawl could not be begun, as the end of a sentence. */
    private String problemOf(Exception e) {
        if (e instanceof Forbidden) return 'the server ' + tokenProblem((Forbidden) e)
        if (e instanceof Stranger) return stranger
        if (e instanceof Refused) return 'the server refused it: ' + e.message
        return 'the server did not answer as it should: ' + messageOf(e)
    }

    /** What an exception says, with the name of its class if that says more. */
    private static String messageOf(Exception e) {
        boolean ours = e.class === IOException || e.class.enclosingClass === DedupClient
        return ours ? e.message : e.toString()
    }

    /** The pause grows with the outage, but not as long as nobody listens: such a probe costs nothing. */
    private synchronized void unanswered(String consequence, Exception e) {
        long now = milliseconds()
        if (failures == 0) {
            since = now
            if (e instanceof Forbidden) log(Level.SEVERE, consequence + '; all is stored, because the server ' + tokenProblem((Forbidden) e) + ': ' + server + ': ' + e.message)
            else if (!stranger.isEmpty() && e instanceof Stranger) log(Level.SEVERE, consequence + '; all is stored, because ' + stranger + ': ' + e.message)
            else log(Level.SEVERE, consequence + '; the crawl goes on, and stores in full what it cannot look up. ' + meanwhile() + ': ' + server + ': ' + messageOf(e))
        }
        failure = e
        failures = failures + 1
        until = now + (e instanceof ConnectException ? Math.min(SHORTEST, quiet) : pause(now - since))
    }

    /** How long to wait until the next probe of a server that is reachable and has failed for so long. */
    private long pause(long failing) { Math.min(quiet, Math.max(SHORTEST, failing.intdiv(SHARE).longValue())) }

    /** What is looked up until the server answers. */
    private String meanwhile() {
        if (quiet == 0L) return 'It goes on looking every response up'
        return 'After ' + FAILURES + ' failures in a row it stops looking up, and tests whether the server answers again: every second ' +
            'while connections are refused, otherwise with pauses of 1 to ' + quiet.intdiv(1000) + ' s'
    }

    /**
     * What is wrong with the token, and what to do about it. 401: there is none, or an unknown one; 403: it is only for reading,
     * for other crawls or for other namespaces.
     */
    private String tokenProblem(Forbidden e) {
        String cure = '; set "token" in dedup-beans.xml to one of bin/token '
        if (token.isEmpty()) return 'wants a token for the crawl ' + crawl + cure + 'that may write to it'
        if (e.status == 401) return 'does not know the token of the crawl ' + crawl + cure + 'for its index'
        if (e.reason.contains('; this needs ')) return 'does not let the token write' + cure + 'with the role write'
        String right = ', or if the token is the right one, set '
        if (e.reason.contains(' in namespaces ')) right += '"namespace" there to one that it is for, and '
        return 'does not let the token write to the crawl ' + crawl + cure + 'that may' + right +
            'metadata.jobName in crawler-beans.cxml, which is ' + jobName() + ' and begins the names of crawls, to a name that it is for'
    }

    private void answered() {
        if (failures == 0) return
        synchronized (this) {
            if (failures != 0) log(Level.INFO, server + ' answers again; not looked up in this crawl: ' + notLookedUp)
            failures = 0
        }
    }

    boolean isBegun() { begun }

    static long milliseconds() { TimeUnit.NANOSECONDS.toMillis(System.nanoTime()) }

    private static final String FORM = 'application/x-www-form-urlencoded', LINES = 'application/x-ndjson'

    private static RequestConfig timeouts(int milliseconds) {
        return RequestConfig.custom().setConnectTimeout(LOOKUP_TIMEOUT).setSocketTimeout(milliseconds)
            .setConnectionRequestTimeout(LOOKUP_TIMEOUT).build()
    }

    /** As `lookup`, for what changes the server. All of it may be sent twice. */
    private String post(String path, String text, String kind) {
        byte[] body = text.getBytes('UTF-8')
        Answer answer = connections?.post(path, body, kind, WRITE_TIMEOUT)
        if (answer != null) return content(answer.status, answer.text, 'POST', path)
        HttpPost request = new HttpPost(server + path)
        request.setConfig(timeouts(WRITE_TIMEOUT))
        request.setEntity(new ByteArrayEntity(body, ContentType.create(kind)))
        return send(request)
    }

    /** The body of an answer 200, null for 204; raises IOException. */
    private String send(HttpRequestBase request) {
        request.setHeader('Accept', 'text/plain')
        if (!token.isEmpty()) request.setHeader('Authorization', 'Bearer ' + token)
        CloseableHttpResponse response = http.execute(request)
        try {
            int code = response.statusLine.statusCode
            String text = response.entity == null ? '' : EntityUtils.toString(response.entity, 'UTF-8')
            return content(code, text, request.method, request.getURI().toString().substring(server.length()))
        } finally {
            response.close()
        }
    }

    private String content(int code, String text, String method, String path) {
        if (code == 200) return text
        if (code == 204) return null
        String reason = line(text)
        String message = method + ' ' + shortened(path) + ' was answered ' + code + ' ' + reason
        boolean ours = text.startsWith('{"error"') && !text.contains('"not_found"')
        if (code in REFUSED && (ours || code != 400 || !'/crawls'.equals(path))) throw new Refused(code, message)
        if (code == 401 || code == 403) throw new Forbidden(code, reason, message)
        if (code == 404) begun = false                 // the server has another index now, which does not know this crawl
        if ((code < 500 || code == 501) && !ours) throw new Stranger(message)
        if (code >= 500 && ours) throw new ServerError(message)
        throw new IOException(message)
    }

    /** A path with its query, without the middle if it is long: the settings of the crawl are at its end. */
    private static String shortened(String path) {
        if (path.length() <= 2 * MOST_OF_PATH) return path
        return path.substring(0, MOST_OF_PATH) + '...' + path.substring(path.length() - MOST_OF_PATH)
    }

    /** The start of an answer, which may be a page of a proxy, on one line. */
    static String line(String text) {
        String start = text.take(10_000).trim()
        if (start.startsWith('<')) start = start.replaceAll('<[^>]*>', ' ')
        String all = start.replaceAll('\\s+', ' ').trim()
        return all.length() <= MOST_OF_TEXT ? all : all.substring(0, MOST_OF_TEXT) + '...'
    }

    /** What a GET is answered, null if there is nothing for us; raises IOException. */
    byte[] bytes(String path, int timeout = FILTER_TIMEOUT) {
        HttpGet request = new HttpGet(server + path)
        request.setConfig(timeouts(timeout))
        if (!token.isEmpty()) request.setHeader('Authorization', 'Bearer ' + token)
        CloseableHttpResponse response = http.execute(request)
        try {
            int code = response.statusLine.statusCode
            byte[] body = response.entity == null ? new byte[0] : EntityUtils.toByteArray(response.entity)
            if (code == 200) return body
            if (code in [401, 403, 404]) return null
            throw new IOException('GET ' + path + ' was answered ' + code)
        } finally {
            response.close()
        }
    }

    /** Find our processors in the chains, and let each run once for a response, also if the profile was edited twice. No thread crawls yet. */
    private void arrange() {
        for (Map.Entry<String, ProcessorChain> bean : context.getBeansOfType(ProcessorChain).entrySet()) {
            List<Processor> kept = new ArrayList<Processor>()
            for (Processor processor : bean.value.getProcessors()) {
                boolean repeated = ours.contains(processor) && kept.contains(processor)
                if (processor instanceof DedupConditions) conditional = true
                if (!repeated) kept.add(processor)
                else log(Level.WARNING, processor.getBeanName() + ' stands more than once in ' + bean.key + ' of crawler-beans.cxml; it runs once for each response. Remove the others')
            }
            if (kept.size() < bean.value.size()) bean.value.setProcessors(kept)
        }
        checkPlaces()
    }

    /** Warn if our processors are not where they must be: fetcher, dedupLookup, writer, dedupStore. */
    private void checkPlaces() {
        List<Processor> all = new ArrayList<Processor>()
        for (FetchChain chain : context.getBeansOfType(FetchChain).values()) all.addAll(chain.getProcessors())
        for (DispositionChain chain : context.getBeansOfType(DispositionChain).values()) all.addAll(chain.getProcessors())
        int fetcher = -1, writer = -1                  // the first of them
        for (int i = all.size() - 1; i >= 0; i--) {
            if (all.get(i) instanceof WriterPoolProcessor) writer = i
            else if (all.get(i).getClass().getSimpleName().startsWith('FetchHTTP')) fetcher = i
        }
        lookupProblem = misplaced(all, DedupLookup, fetcher, writer)
        storeProblem = misplaced(all, DedupStore, writer, -1)
        String revisits = conditional ? misplaced(all, DedupNotModified, fetcher, writer) : ''
        int lookup = placeOf(all, DedupLookup)
        if (lookup < 0 || lookup < fetcher) {
            for (Processor one : ours) if (storeProblem.isEmpty() && one instanceof DedupLookup) unusedLookup = (DedupLookup) one
            countUnknown = unusedLookup == null
        }
        if (!lookupProblem.isEmpty()) log(Level.WARNING, lookupProblem + '. No response' + (conditional && revisits.isEmpty() ? ' but a 304' : '') + ' becomes a revisit')
        if (!storeProblem.isEmpty()) log(Level.WARNING, storeProblem + '. Nothing that is stored in full is reported, so no lookup finds it')
        if (!revisits.isEmpty()) log(Level.WARNING, revisits + '. No answer 304 becomes a revisit')
    }

    /** The first place of our processor, -1 if it stands in no chain. */
    private static int placeOf(List<Processor> all, Class<? extends Processor> kind) {
        for (int i = 0; i < all.size(); i++) if (all.get(i).getClass() === kind) return i
        return -1
    }

    /** What is wrong with the place of our processor, which stands behind one place and before another; '' if nothing is. -1: no such place. */
    private String misplaced(List<Processor> all, Class<? extends Processor> kind, int after, int before) {
        int place = placeOf(all, kind)
        if (place > after && (before < 0 || place < before)) return ''   // before text is put together, which is slow in Java's first seconds
        String name = 'dedup' + kind.simpleName.substring(5)
        for (Processor one : ours) if (one.getClass() === kind) name = one.beanName
        String cure = ' crawler-beans.cxml'
        if (after >= 0) cure += ': write <ref bean="' + name + '"/> after <ref bean="' + all.get(after).beanName + '"/>'
        if (place < 0) return name + ' stands in no chain of' + cure
        if (place < after) return name + ' stands before ' + all.get(after).beanName + ' in' + cure
        return name + ' stands after ' + all.get(before).beanName + ' in' + cure
    }

    /** What is stored is reported when the crawl pauses; at its end it answers everybody, or is taken back. */
    void onApplicationEvent(CrawlStateEvent event) {
        String state = event.state.name()
        if ('PREPARING'.equals(state)) {                    // earlier there is no alerts.log
            arrange()
            if (filter == null && settings.digestFilter > 0L) {
                log(Level.WARNING, 'every response is looked up: a crawl in a namespace cannot use the digest filter')
            }
        }
        if ('PAUSED'.equals(state) || 'STOPPING'.equals(state)) flushNow()
        if (!'FINISHED'.equals(state)) return
        // Heritrix may exit as soon as the crawl is finished, without waiting for us; this makes it wait.
        CountDownLatch ended = new CountDownLatch(1)
        Thread hook = new Thread({ ended.await(LONGEST_END, TimeUnit.SECONDS) } as Runnable)
        Runtime.runtime.addShutdownHook(hook)
        try {
            end(event.message ?: '')
        } catch (Exception e) {                        // out of here it would stop the thread that ends the crawl
            log(Level.SEVERE, 'crawl ' + crawl + ' is still open: ' + messageOf(e))
        } finally {
            ended.countDown()
            try {
                Runtime.runtime.removeShutdownHook(hook)
            } catch (IllegalStateException ignored) {  // Heritrix is exiting already
            }
        }
    }

    /** The counts of the crawl, as one line. */
    String counts() {
        StringBuilder text = new StringBuilder('looked up ').append(lookups).append(', of these duplicates ').append(duplicates)
        if (leftOut.get() > 0L) text.append(', left out by shouldProcessRule of dedupLookup and stored in full ').append(leftOut)
        if (truncated.get() > 0L) text.append(', truncated and neither looked up nor reported ').append(truncated)
        if (filter != null) text.append(', answered by the filter ').append(answeredByFilter)
        if (conditional) text.append('; not modified ').append(notModified).append(', bytes not fetched ').append(notFetched)
        text.append('; reported ').append(reported)
        if (refusals != null) text.append(', of these refused by the rules of the index:')
        for (Refusal one = refusals; one != null; one = one.next) {
            text.append(' ').append(one.reason).append(' ').append(one.count)
            if (one.next != null) text.append(',')
        }
        return text.append(missed()).toString()
    }

    private String missed() {
        StringBuilder text = new StringBuilder()
        if (countUnknown) text.append('; how many were not looked up is not known')
        else if (notLookedUp.get() > 0L) text.append('; not looked up ').append(notLookedUp)
        if (notReported.get() > 0L) text.append('; not reported ').append(notReported)
        if (revisitsNotReported.get() > 0L) text.append('; revisits not reported ').append(revisitsNotReported)
        return text.toString()
    }

    /** What to do about captures that the server does not know. */
    private String later(boolean cancelled = false) {
        if (!namespace.isEmpty()) return '; no later crawl finds what was not reported. Do not index the WARCs: what is read from files is in no namespace and answers everybody'
        String name = nameTaken.isEmpty() ? crawl : 'OTHER_NAME'   // not that of another crawl
        return (cancelled ? '; if its WARCs are kept, index them' : '; index the WARCs') + ' afterwards (bin/index --add --crawl ' + name + ' ' + warcs() + ' INDEX), or later crawls do not find what is in them'
    }

    /** The directories that the crawl writes its WARCs to, as words of a shell. */
    private String warcs() {
        List<String> words = new ArrayList<String>()
        for (WriterPoolProcessor writer : context.getBeansOfType(WriterPoolProcessor).values()) {
            for (ConfigPath path : writer.getStorePaths()) words.add("'" + path.getFile().toPath().normalize().toString().replace("'", "'\\''") + "'")
        }
        return words.isEmpty() ? 'WARCS' : words.join(' ')
    }

    private void end(String reason) {
        if (crawl == null) identify()
        long last = milliseconds() + LONGEST_AWAY
        boolean cancel = settings.cancelOn != null && settings.cancelOn.matcher(reason).find()
        String step = '/crawls/' + crawl + (cancel ? '/cancel' : '/commit')
        boolean unreported = !lookupProblem.isEmpty() || (!storeProblem.isEmpty() && !nothingToReport())
        // Nothing came to `report`, so nothing was counted there. Duplicates that were found too late are stored in full, too.
        if (unreported) notReported.addAndGet(lookups.get() - (lookupProblem.isEmpty() ? duplicates.get() : 0L))
        boolean logged = reportLast(step, reason, cancel, last)
        dropWaiting()
        String missed = missed()
        log(Level.INFO, 'crawl ' + crawl + ': ' + counts())
        if (!begun) {
            notBegun(missed)
            return
        }
        // Logged now, as `done` may come when the log is closed.
        if (unreported) log(Level.WARNING, 'crawl ' + crawl + ': ' + withoutOurs() + later(cancel))
        String outcome = selfReport().put('exit', reason).text()
        for (int tried = 1; ; tried++) {
            try {
                post(step, outcome, FORM)
                keepReport()
                log(Level.INFO, 'done: POST ' + step + (missed && !unreported ? later(cancel) : ''))
                return
            } catch (IOException e) {
                if (!logged) logOpen(e, step, outcome, missed, cancel)
                logged = true
                if (isReferredTo(e, cancel)) return
                boolean again = isPassing(e) ? milliseconds() < last : tried < ATTEMPTS
                if (!again) return
                if (isPassing(e)) Thread.sleep(AGAIN)
            }
        }
    }

    /**
     * Report what waits, since a committed crawl takes no more; wait for a server that is away, not longer than until `last`.
     * Returns whether it was away, and what to do about that is logged.
     */
    private boolean reportLast(String step, String reason, boolean cancel, long last) {
        flushNow()
        if (!begun || cancel) return false
        Exception problem = whyWaiting()
        if (problem == null || !isPassing(problem)) return false
        long[] lost = waitingNow()                     // if the server does not come back
        notReported.addAndGet(lost[0])
        revisitsNotReported.addAndGet(lost[1])
        logOpen(problem, step, selfReport().put('exit', reason).text(), missed(), cancel)
        notReported.addAndGet(-lost[0])
        revisitsNotReported.addAndGet(-lost[1])
        while (problem != null && isPassing(problem) && milliseconds() < last) {
            Thread.sleep(AGAIN)
            flushNow()
            problem = whyWaiting()
        }
        return true
    }

    /** Why the server did not answer a report, if captures still wait; null if it is there, though it may refuse reports. */
    private Exception whyWaiting() {
        synchronized (waiting) { return count > 0 && failures > 0 ? failure : null }
    }

    /** How many captures wait that are stored in full, and how many revisits. */
    private long[] waitingNow() {
        long[] found = new long[2]
        synchronized (waiting) {
            for (Capture capture = oldest; capture != null; capture = capture.next) found[capture.stored ? 0 : 1] += 1L
        }
        return found
    }

    /** Count what could not be reported, when no report is on its way. */
    private void dropWaiting() {
        synchronized (reporting) {
            synchronized (waiting) {
                long[] lost = waitingNow()
                notReported.addAndGet(lost[0])
                revisitsNotReported.addAndGet(lost[1])
                forget(count)
            }
        }
    }

    /** Whether a server that fails so may do what it is asked within seconds: it is being restarted, or has too much to do. */
    private boolean isPassing(Exception e) {
        if (e instanceof Refused) return ((Refused) e).status == 429
        return begun && !(e instanceof Forbidden) && !(e instanceof Stranger)
    }

    private static boolean isReferredTo(Exception e, boolean cancel) { cancel && e instanceof Refused && ((Refused) e).status == 409 }

    /** Say that the crawl is open, and how to end it by hand. Said at once: when Heritrix exits, its log is closed before we are done. */
    private void logOpen(Exception e, String step, String outcome, String missed, boolean cancel) {
        boolean refused
        synchronized (reporting) { refused = reportProblem instanceof Forbidden }
        boolean forbidden = refused || e instanceof Forbidden
        log(Level.SEVERE, 'crawl ' + crawl + ' is still open: ' + messageOf(e))
        if (isReferredTo(e, cancel)) {
            log(Level.SEVERE, 'revisits of other crawls may refer to what it stored: commit it by hand: ' + byHand('/crawls/' + crawl + '/commit', outcome, forbidden))
            log(Level.SEVERE, 'or, if its WARCs and those revisits are thrown away, cancel it: ' + byHand(step, outcome + '&force=true', forbidden))
        } else {
            log(Level.SEVERE, 'if no line "done" follows, do it by hand: ' + byHand(step, outcome, forbidden))
        }
        log(Level.SEVERE, 'then bin/report INDEX --crawl ' + crawl + ' prints the report that is missing in reports/')
        if (missed) log(Level.SEVERE, 'crawl ' + crawl + missed + later(cancel))
    }

    /** Whether all that was to be looked up was a duplicate, so that dedupStore had nothing to do. It would also report answers 304. */
    private boolean nothingToReport() {
        return !conditional && lookups.get() > 0L && lookups.get() == duplicates.get() && notLookedUp.get() == 0L
    }

    /** What a crawl went without, as dedupLookup or dedupStore has the wrong place. */
    private String withoutOurs() {
        String because = lookupProblem + (lookupProblem.isEmpty() || storeProblem.isEmpty() ? '' : ', and ') + storeProblem
        return (unusedLookup != null || countUnknown ? 'no response was looked up, and ' : '') + 'nothing that was stored in full was reported, because ' + because
    }

    /** Say why the server does not know the crawl, and what to do if it should. */
    private void notBegun(String missed) {
        String subject = 'crawl ' + crawl + ' was never begun at ' + server
        String why = notBegunBecause ?: lookupProblem
        if (nameTaken) log(Level.SEVERE, 'this launch could not begin the crawl ' + crawl + ', as there is one of this name: ' + nameTaken + missed + later())
        else if (missed || lookupProblem) log(why && why == lookupProblem ? Level.WARNING : Level.SEVERE, subject + (why ? ', because ' + why : '') + missed + later())
        else if (leftOut.get() > 0L) {
            log(Level.INFO, subject + ', because nothing was to be looked up: shouldProcessRule of dedupLookup in dedup-beans.xml leaves out ' +
                (leftOut.get() == 1L ? 'the only response' : 'all ' + leftOut + ' responses') + ' (text, unless you changed it: docs/crawlers.md says how to look it up)')
        } else log(Level.INFO, subject + ', because nothing was to be looked up: no response had the status 2xx and a whole body, or dedupLookup is disabled')
    }

    /** The command that ends the crawl; it names the token and does not show it. `forbidden`: the server does not take that of the job. */
    private String byHand(String step, String outcome, boolean forbidden) {
        boolean none = token.isEmpty() && !forbidden
        String header = none ? '' : '-H "Authorization: Bearer $TOKEN" '
        String where = none ? '' : ' (TOKEN is the token of dedup-beans.xml)'
        if (forbidden) where = ' (TOKEN is one that may write to this crawl; bin/token INDEX --add NAME prints a new one)'
        return 'curl ' + header + "-d '" + outcome + "' '" + server + step + "'" + where
    }

    /** Write the server's report of the crawl beside Heritrix's own; it is on the server in any case. */
    private void keepReport() {
        Path target = context.getBean(StatisticsTracker).reportsDir.file.toPath().resolve('dedupindex-report.txt')
        try {
            Thread.sleep(COUNTED)
            byte[] text = bytes('/crawls/' + crawl + '/report?format=text&by=host&top=1000', WRITE_TIMEOUT)
            if (text == null) throw new IOException('the token may not read it')
            Files.createDirectories(target.parent)
            Path part = target.resolveSibling('dedupindex-report.txt.part')
            Files.write(part, text)
            Files.move(part, target, StandardCopyOption.ATOMIC_MOVE)
        } catch (Exception e) {                        // the crawl is committed or cancelled all the same
            log(Level.WARNING, 'no ' + target + ' was written (bin/report --crawl ' + crawl + ' has the same): ' + messageOf(e))
        }
    }

    void destroy() {
        reporter?.shutdown()
        renewer?.shutdownNow()
        connections?.close()
        http?.close()
    }
}

/**
 * The settings of dedup-beans.xml. Each wrong one is named, and Heritrix does not build the job: it would crawl without
 * deduplication, or leave its crawl open at the end.
 */
@CompileStatic
@POJO
class DedupSettings {
    // What a setting that is empty or left out stands for.
    private static final Map<String, String> DEFAULTS = [
        server: '', token: '', searchStrategy: 'DIGEST_ANY', maxAge: '', seenBy: 'own', namespace: '', digestCovers: 'auto', cancelOn: '',
        quietSeconds: '30', digestFilter: '0', fetchInFull: '',
    ]
    // What the HTTP interface calls them.
    private static final Map<String, String> OTHER_NAMES = [strategy: 'searchStrategy', covers: 'digestCovers', renew: 'digestFilter', url: 'server']
    private static final String STRATEGIES = 'DIGEST_ANY EXACT_URL CANONICAL_URL DIGEST_URL_PREFERRED URL_EXACT URL_CANONICAL'   // the last three: of the DeDuplicator
    private static final int MOST_SHOWN = 100          // characters of a value

    private final Properties given
    private final List<String> problems = new ArrayList<String>()
    final long quietSeconds, digestFilter
    final Pattern cancelOn, fetchInFull                // null: none

    DedupSettings(Properties given) {
        this.given = given
        for (String name : given.stringPropertyNames()) if (!DEFAULTS.containsKey(name)) problems.add('there is no setting ' + name + '; ' + meant(name))
        checkServer()
        // Not shown: the log is for more people than the file.
        if (!text('token').matches('[!-~]*')) problems.add('token takes what bin/token printed: ASCII letters, digits, _ and -, without spaces')
        checkWord('searchStrategy', text('searchStrategy').toUpperCase(Locale.ROOT), STRATEGIES)
        check('maxAge', text('maxAge').matches('([0-9]{1,12}[smhdy]?)?'), 'a number and one of s m h d y, such as 12h, 30d or 2y, or nothing for any age')
        checkWord('seenBy', text('seenBy'), 'own all')
        boolean step = '.'.equals(text('namespace')) || '..'.equals(text('namespace'))
        check('namespace', !step && text('namespace').matches('[!-.0-~]{0,200}'), 'up to 200 printable ASCII characters, no space and no slash, and neither . nor ..')
        checkWord('digestCovers', text('digestCovers'), 'auto stored entity')
        cancelOn = pattern('cancelOn', 0)
        quietSeconds = number('quietSeconds')
        digestFilter = number('digestFilter')
        fetchInFull = pattern('fetchInFull', Pattern.CASE_INSENSITIVE)
        if (problems.isEmpty()) return
        // Heritrix writes the message of this exception into job.log, which its web page shows; of others it names the bean only.
        String which = problems.size() == 1 ? 'A setting' : problems.size() + ' settings'
        throw new FatalBeanException(which + ' of the bean "dedup" in dedup-beans.xml cannot be used, so the job is not launched: ' + String.join('; ', problems))
    }

    /** A setting, or what stands for it. */
    String text(String name) { given.getProperty(name, '').trim() ?: DEFAULTS.get(name) }

    private void check(String name, boolean right, String takes) {
        if (right) return
        String value = text(name)
        problems.add(name + ' takes ' + takes + ', not "' + (value.length() <= MOST_SHOWN ? value : value.substring(0, MOST_SHOWN) + '...') + '"')
    }

    private void checkWord(String name, String value, String words) {
        List<String> known = Arrays.asList(words.split(' '))
        check(name, known.contains(value), String.join(', ', known.subList(0, known.size() - 1)) + ' or ' + known.get(known.size() - 1))
    }

    private void checkServer() {
        String takes = 'the address of bin/serve, such as http://127.0.0.1:8484'
        boolean right = false
        try {
            URI address = new URI(text('server'))
            boolean web = 'http'.equalsIgnoreCase(address.scheme) || 'https'.equalsIgnoreCase(address.scheme)
            right = web && address.rawQuery == null && address.rawFragment == null && address.rawUserInfo == null && address.port <= 65_535
            // A name with an underscore, as in a Docker network, is none for Java.
            if (address.host == null) right = right && address.rawAuthority != null && address.rawAuthority.matches('[A-Za-z0-9._-]+(:[0-9]{1,5})?')
        } catch (URISyntaxException e) {
            takes += ' (' + e.message + ')'
        }
        check('server', right, takes)
    }

    private long number(String name) {
        boolean right = text(name).matches('[0-9]{1,9}')
        check(name, right, 'a whole number of seconds')
        return right ? Long.parseLong(text(name)) : 0L
    }

    /** The regular expression of a setting; null if it is empty. */
    private Pattern pattern(String name, int flags) {
        try {
            return text(name).isEmpty() ? null : Pattern.compile(text(name), flags)
        } catch (PatternSyntaxException e) {
            check(name, false, 'a regular expression (' + e.description + ' at character ' + (e.index + 1) + ')')
            return null
        }
    }

    /** What a name that is none may mean. */
    private static String meant(String name) {
        String near = OTHER_NAMES.get(plain(name))
        int best = Math.max(1, Math.floorDiv(name.length(), 3))     // so many letters may differ
        for (String known : DEFAULTS.keySet()) {
            int letters = distance(plain(name), plain(known))
            if (letters > best || near != null && letters == best) continue
            best = letters
            near = known
        }
        return near != null ? 'did you mean ' + near + '?' : 'there are ' + String.join(', ', DEFAULTS.keySet())
    }

    private static String plain(String name) { name.replaceAll('[^A-Za-z]', '').toLowerCase(Locale.ROOT) }

    /** How many letters must be added, left out or replaced to make one word of the other. */
    private static int distance(String one, String other) {
        int[] row = new int[other.length() + 1]
        for (int j = 0; j <= other.length(); j++) row[j] = j
        for (int i = 1; i <= one.length(); i++) {
            int corner = row[0]
            row[0] = i
            for (int j = 1; j <= other.length(); j++) {
                int changed = corner + (one.charAt(i - 1) == other.charAt(j - 1) ? 0 : 1)
                corner = row[j]
                row[j] = Math.min(changed, 1 + Math.min(row[j], row[j - 1]))
            }
        }
        return row[other.length()]
    }
}

/** A line of a report, a JSON object, written as it is put together: Java need not compile `JSONObject` for it. */
@CompileStatic
@POJO
class Row {
    private final StringBuilder text = new StringBuilder('{')

    /** Add a text or a number; null is left out. */
    Row put(String name, Object value) {
        if (value == null) return this
        if (text.length() > 1) text.append(',')
        text.append('"').append(name).append('":')
        if (value instanceof Number) text.append(value) else text.append(JSONObject.quote(String.valueOf(value)))
        return this
    }

    String json() { text.toString().concat('}') }
}

/** The fields of a form, as they are sent. */
@CompileStatic
@POJO
class Form {
    private final StringBuilder fields = new StringBuilder()

    Form put(String name, Object value) {
        if (fields.length() > 0) fields.append('&')
        fields.append(name).append('=').append(DedupClient.encoded(String.valueOf(value)))
        return this
    }

    String text() { fields.toString() }
}

/** What the server says of an original, as headers of revisit records. */
@CompileStatic
@POJO
class Original {
    static final Original NONE = new Original()
    String url, date, id, digest, mime, size, etag, modified      // null: not said

    boolean exists() { this !== NONE }

    /** Read an answer; null if there was no original. Raises IOException if it is not whole. */
    static Original read(String text) {
        if (text == null) return NONE
        Original found = new Original()
        StringTokenizer lines = new StringTokenizer(text, '\r\n')
        while (lines.hasMoreTokens()) {
            String line = lines.nextToken()
            int colon = line.indexOf(': ')
            if (colon > 0) found.take(line.substring(0, colon), line.substring(colon + 2))
        }
        // Without its last line end the answer was cut, by a proxy that states no length, perhaps within a URL or date.
        boolean whole = text.endsWith('\n') && found.url != null && found.date != null
        if (!whole || found.url.isEmpty() || found.date.isEmpty()) throw new IOException('no original in the answer ' + DedupClient.line(text))
        return found
    }

    private void take(String name, String value) {
        if ('WARC-Refers-To-Target-URI'.equals(name)) url = value
        else if ('WARC-Refers-To-Date'.equals(name)) date = value
        else if ('WARC-Refers-To'.equals(name)) id = value.startsWith('<') && value.endsWith('>') ? value.substring(1, value.length() - 1) : value
        else if ('WARC-Payload-Digest'.equals(name)) digest = value
        else if ('Dedup-Original-Type'.equals(name)) mime = value
        else if ('Dedup-Original-Size'.equals(name)) size = value
        else if ('If-None-Match'.equals(name)) etag = value
        else if ('If-Modified-Since'.equals(name)) modified = value
    }
}

/** The answer to a request. */
@CompileStatic
@POJO
class Answer {
    final int status
    final String text
    final boolean last                                 // the server closes the connection
    Answer(int status, String text, boolean last) { this.status = status; this.text = text; this.last = last }
}

/**
 * Kept connections, each for one request at a time; the last used is the next. HttpClient takes half a millisecond of processor
 * time for a request, this a tenth of it, and understands no more than our server sends: what else comes is left to HttpClient.
 */
@CompileStatic
@POJO
class KeptConnections {
    private static final int ROOM = 1 << 14            // bytes of an answer, its headers included

    private final String host, base, headers
    private final int port, connectTimeout
    private final boolean secure
    private final Object pool = new Object()           // the lock of:
    private Connection free                            // the last used of those that wait for a request
    private boolean closed

    @CompileStatic
    @POJO
    private static class Connection {
        final Socket socket
        final OutputStream output
        final InputStream input, wire                  // what has come, decrypted, and as it came
        final byte[] buffer
        int filled                                     // bytes of the answer in `buffer`
        long deadline                                  // of the answer; milliseconds
        Connection next                                // that waits for a request
        Connection(Socket socket, Socket wire, byte[] buffer) {
            this.buffer = buffer
            this.socket = socket
            this.wire = wire.inputStream
            output = socket.outputStream
            input = socket.inputStream
        }

        /** Read on; raises IOException if nothing comes until the deadline: a peer that sends a byte now and then does not move it. */
        void more() {
            socket.setSoTimeout(left(deadline))
            int count = input.read(buffer, filled, buffer.length - filled)
            if (count < 0) throw new EOFException('the server closed the connection')
            filled = filled + count
        }
    }

    KeptConnections(URI server, String token, int connectTimeout) {
        host = server.host
        secure = 'https'.equalsIgnoreCase(server.scheme)
        port = server.port < 0 ? (secure ? 443 : 80) : server.port
        base = server.rawPath ?: ''
        this.connectTimeout = connectTimeout
        String authorization = token.isEmpty() ? '' : 'Authorization: Bearer ' + token + '\r\n'
        headers = ' HTTP/1.1\r\nHost: ' + server.rawAuthority + '\r\nAccept: text/plain\r\n' + authorization
    }

    /** The answer to GET, within milliseconds of which connecting and a second connection are part; null if HttpClient must ask. Raises IOException. */
    Answer get(String path, int timeout) {
        StringBuilder request = new StringBuilder('GET ').append(base).append(path).append(headers).append('\r\n')
        return answer(request.toString().getBytes('ISO-8859-1'), timeout)
    }

    /** The answer to POST, as for `get`. It may be sent twice, as a kept connection can end after the server has read it. */
    Answer post(String path, byte[] body, String kind, int timeout) {
        StringBuilder head = new StringBuilder('POST ').append(base).append(path).append(headers)
        head.append('Content-Type: ').append(kind).append('\r\nContent-Length: ').append(body.length).append('\r\n\r\n')
        byte[] start = head.toString().getBytes('ISO-8859-1')
        byte[] request = Arrays.copyOf(start, start.length + body.length)
        System.arraycopy(body, 0, request, start.length, body.length)
        return answer(request, timeout)
    }

    /** The milliseconds until a deadline; raises SocketTimeoutException if it is over. */
    private static int left(long deadline) {
        long left = deadline - DedupClient.milliseconds()
        if (left <= 0L) throw new SocketTimeoutException('the answer was not whole in time')
        return (int) left
    }

    private Answer answer(byte[] request, int timeout) {
        long deadline = DedupClient.milliseconds() + timeout
        Connection kept = taken()
        if (kept != null) {
            // Not an answer to this request, whatever it is; a further record of TLS may be a ticket, or the end.
            if (kept.input.available() > 0 || kept.wire.available() > 0) kept.socket.close()
            else try {
                return exchange(kept, request, deadline)
            } catch (SocketTimeoutException e) {
                throw e
            } catch (IOException ignored) {            // the server has closed it, perhaps while the request was on its way
                if (kept.filled > 0) return null
            }
        }
        return exchange(connect(deadline), request, deadline)
    }

    /** A connection that waits for a request; null if there is none. */
    private Connection taken() {
        synchronized (pool) {
            Connection first = free
            if (first != null) free = first.next
            return first
        }
    }

    private void giveBack(Connection connection) {
        synchronized (pool) {
            if (!closed) {
                connection.next = free
                free = connection
                return
            }
        }
        connection.socket.close()
    }

    private Connection connect(long deadline) {
        Socket socket = new Socket()
        try {
            socket.setTcpNoDelay(true)
            InetSocketAddress address = new InetSocketAddress(host, port)
            socket.connect(address, Math.min(left(deadline), connectTimeout))
            socket.setSoTimeout(left(deadline))        // of each read of TLS
            return new Connection(secure ? secured(socket) : socket, socket, new byte[ROOM])
        } catch (IOException e) {
            socket.close()
            throw e
        }
    }

    /** TLS over a connection; raises SSLException unless Java trusts the certificate, and it names the host. */
    private Socket secured(Socket socket) {
        SSLSocketFactory factory = (SSLSocketFactory) SSLSocketFactory.getDefault()
        SSLSocket made = (SSLSocket) factory.createSocket(socket, host, port, true)
        SSLParameters parameters = made.getSSLParameters()
        parameters.setEndpointIdentificationAlgorithm('HTTPS')
        made.setSSLParameters(parameters)
        made.startHandshake()
        return made
    }

    private Answer exchange(Connection connection, byte[] request, long deadline) {
        Answer answer = null
        try {
            connection.deadline = deadline
            connection.filled = 0
            connection.output.write(request)
            answer = read(connection)
        } finally {
            if (answer == null || answer.last) connection.socket.close()
            else giveBack(connection)
        }
        return answer
    }

    /** The next answer; null if it is not as our server writes them. Raises IOException if it is cut. */
    private static Answer read(Connection connection) {
        byte[] buffer = connection.buffer
        String head = ''
        int end = -1
        while (end < 0) {
            if (connection.filled == ROOM) return null
            connection.more()
            head = new String(buffer, 0, connection.filled, 'ISO-8859-1')
            end = head.indexOf('\r\n\r\n')
        }
        int body = end + 4
        head = head.substring(0, body)
        if (!head.startsWith('HTTP/1.1 ') || head.length() < 16 || Character.isDigit(head.charAt(12))) return null
        int status = 0, length = -1
        for (int i = 9; i < 12; i++) status = 10 * status + Character.digit(head.charAt(i), 10)
        boolean last = false
        for (int line = head.indexOf('\n') + 1; line < body - 2; line = head.indexOf('\n', line) + 1) {
            if (begins(head, line, 'content-length:')) length = number(head, line + 15)
            else if (begins(head, line, 'connection:')) last = true
            else if (begins(head, line, 'transfer-encoding:') || begins(head, line, 'content-encoding:')) return null
        }
        if (status == 204) length = 0
        if (status < 200 || length < 0 || body + length > ROOM) return null
        while (connection.filled < body + length) connection.more()
        if (connection.filled > body + length) return null
        return new Answer(status, new String(buffer, body, length, 'UTF-8'), last)
    }

    private static boolean begins(String head, int line, String name) { head.regionMatches(true, line, name, 0, name.length()) }

    /** The number at a place of a line; -1 if there is another. */
    private static int number(String head, int at) {
        String digits = head.substring(at, head.indexOf('\r', at)).trim()
        if (digits.isEmpty() || digits.length() > 5) return -1
        int number = 0
        for (int i = 0; i < digits.length(); i++) {
            int digit = Character.digit(digits.charAt(i), 10)
            if (digit < 0) return -1
            number = 10 * number + digit
        }
        return number
    }

    void close() {
        Connection first
        synchronized (pool) {
            closed = true
            first = free
            free = null
        }
        for (Connection connection = first; connection != null; connection = connection.next) connection.socket.close()
    }
}

/**
 * Which digests the index cannot have, in files that are mapped into memory: docs/digest-filter.md has the format. A part
 * that is not whole is not used, and without all parts that the server names, compared not long ago, everything is asked.
 */
@CompileStatic
@POJO
class DedupFilter {
    private static final int HEADER = 64, BLOCK = 32, CHECKSUM = 32, PIECE = 4 << 20      // bytes
    private static final int SEGMENT = 1 << 30         // bytes that are mapped at once
    private static final long LARGEST = 4L << 30       // bytes of a filter that is fetched
    private static final int TABLE = 1 << 16, BITS = 12                       // bytes of the first table; bits for a digest
    private static final long GRACE = 30_000L          // milliseconds beyond three intervals after which it is not used
    private static final List<String> ALGORITHMS = ['', 'md5', 'sha1', 'sha256', 'sha512', 'blake3']
    private static final ByteBuffer SALTS = salts('47b6137b 44974d91 8824ad5b a2b7289d 705495c7 2df1424b 9efc4947 5c6bfb31')

    final long renewMilliseconds
    private final DedupClient client
    private volatile Part[] parts = null               // null: there is no filter
    private volatile long compared                     // with the server's manifest; milliseconds
    private final Object reported = new Object()       // the lock of:
    private Table newest                               // of what this crawl has stored
    private int room                                   // digests that it still takes

    @CompileStatic
    @POJO
    private static class Part {
        String id
        long blocks
        int algorithms
        ByteBuffer[] segments
    }

    @CompileStatic
    @POJO
    private static class Table {
        final ByteBuffer bytes
        final Table older
        Table(int size, Table older) { bytes = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN); this.older = older }
    }

    DedupFilter(DedupClient client, long seconds) {
        this.client = client
        renewMilliseconds = seconds * 1000L
    }

    private static ByteBuffer salts(String hexadecimal) {
        ByteBuffer found = ByteBuffer.allocate(32)
        for (String word : hexadecimal.split(' ')) found.putInt(Integer.parseUnsignedInt(word, 16))
        return found
    }

    /** The number of the algorithm of a digest with its label; 0 if the server must be asked. */
    private static int algorithm(String digest, byte[] raw) {
        int colon = digest.indexOf(':')
        if (colon < 1 || raw == null || raw.length < 16) return 0
        if (ByteBuffer.wrap(raw).getInt(raw.length - 4) == 0) return 0    // it may have been cut
        return Math.max(0, ALGORITHMS.indexOf(digest.substring(0, colon).toLowerCase(Locale.ROOT).replace('-', '')))
    }

    /** Whether the server had a filter when it was last asked. */
    boolean exists() { parts != null }

    /** Whether neither the index has a digest nor this crawl has stored it; false if the server must be asked. */
    boolean lacks(String digest, byte[] raw) {
        Part[] known = parts
        if (known == null || DedupClient.milliseconds() - compared > 3L * renewMilliseconds + GRACE) return false
        int number = algorithm(digest, raw)
        if (number == 0) return false
        long key = ByteBuffer.wrap(raw).getLong()
        for (Part part : known) {
            if ((part.algorithms >>> number & 1) == 1 && has(part, key)) return false
        }
        synchronized (reported) {
            for (Table table = newest; table != null; table = table.older) {
                if (areSet(table.bytes, start(table, key), key)) return false
            }
        }
        return true
    }

    private static long blockOf(long key, long blocks) { (key >>> 32) * blocks >>> 32 }

    private static int start(Table table, long key) { (int) (BLOCK * blockOf(key, Math.floorDiv(table.bytes.capacity(), BLOCK))) }

    private static boolean has(Part part, long key) {
        long at = HEADER + BLOCK * blockOf(key, part.blocks)
        int number = (int) (at >>> 30)
        for (ByteBuffer segment : part.segments) if (number-- == 0) return areSet(segment, (int) (at & (SEGMENT - 1)), key)
        return true                                    // the server must be asked
    }

    private static int bitOf(long key, int word) { ((int) key) * SALTS.getInt(4 * word) >>> 27 }

    /** Whether all bits of a digest are set in the block at a place. */
    private static boolean areSet(ByteBuffer blocks, int start, long key) {
        for (int word = 0; word < 8; word++) {
            if ((blocks.getInt(start + 4 * word) >>> bitOf(key, word) & 1) == 0) return false
        }
        return true
    }

    /** Add a digest that this crawl has stored. */
    void add(String digest, byte[] raw) {
        if (algorithm(digest, raw) == 0) return
        long key = ByteBuffer.wrap(raw).getLong()
        synchronized (reported) {
            if (room == 0) {
                int size = newest == null ? TABLE : Math.min(2 * newest.bytes.capacity(), SEGMENT)
                newest = new Table(size, newest)
                room = (int) Math.floorDiv(size * 8L, BITS)
            }
            room = room - 1
            for (int word = 0; word < 8; word++) {
                int place = start(newest, key) + 4 * word
                newest.bytes.putInt(place, newest.bytes.getInt(place) | 1 << bitOf(key, word))
            }
        }
    }

    /** Fetch the parts that are new and forget those that are gone; raises IOException, and then nothing has changed. */
    void renew() {
        for (int left = 3; left > 0; left--) {         // a part may be merged into another meanwhile
            long began = DedupClient.milliseconds()
            byte[] manifest = client.bytes('/digest-filter')
            if (manifest == null) {
                parts = null
                return
            }
            List<Part> found = partsOf(new JSONObject(new String(manifest, 'UTF-8')))
            if (found != null) {
                parts = found.toArray(new Part[0])
                compared = began
                return
            }
        }
        throw new IOException('the parts of the digest filter change all the time')
    }

    /** The parts of a manifest; null if one of them is not there any more. */
    private List<Part> partsOf(JSONObject manifest) {
        if (manifest.getInt('version') != 1) throw new IOException('the digest filter has another version')
        Map<String, Part> held = new HashMap<String, Part>()
        Part[] before = parts
        if (before != null) for (Part part : before) held.put(part.id, part)
        JSONArray rows = manifest.getJSONArray('parts')
        long size = 0L
        for (int row = 0; row < rows.length(); row++) size += rows.getJSONObject(row).getLong('bytes')
        if (size > LARGEST) throw new IOException('the digest filter is too large: ' + size + ' bytes')
        List<Part> found = new ArrayList<Part>()
        for (int row = 0; row < rows.length(); row++) {
            String id = rows.getJSONObject(row).getString('id')
            Part part = held.containsKey(id) ? held.get(id) : fetched(id, rows.getJSONObject(row).getLong('bytes'))
            if (part == null) return null
            found.add(part)
        }
        return found
    }

    /** A part from the server, in a file that has no name any more; null if the server does not have it. */
    private Part fetched(String id, long size) {
        if (!(id ==~ '[0-9a-f]{64}') || size < HEADER + BLOCK + CHECKSUM) throw new IOException('this is no part of a digest filter')
        Path path = Files.createTempFile('dedupindex-', '.part')
        try {
            MessageDigest checksum = MessageDigest.getInstance('SHA-256')
            OutputStream stream = Files.newOutputStream(path)
            try {
                for (long at = 0L; at < size; at += PIECE) {
                    byte[] piece = client.bytes('/digest-filter/' + id + '?piece=' + at.intdiv(PIECE))
                    if (piece == null) return null
                    if (piece.length != Math.min((long) PIECE, size - at)) throw new IOException('a piece of a digest filter was cut')
                    stream.write(piece)
                    int summed = (int) Math.min((long) piece.length, size - CHECKSUM - at)
                    if (summed > 0) checksum.update(piece, 0, summed)
                }
            } finally {
                stream.close()
            }
            if (checksum.digest().encodeHex().toString() != id) throw new IOException('a part of the digest filter was damaged on its way')
            return mapped(path, id, size)
        } finally {
            Files.delete(path)
        }
    }

    private static Part mapped(Path path, String id, long size) {
        FileChannel channel = FileChannel.open(path, StandardOpenOption.READ)
        try {
            Part part = new Part()
            part.id = id
            List<ByteBuffer> segments = new ArrayList<ByteBuffer>()
            for (long at = 0L; at < size; at += SEGMENT) {
                segments.add(channel.map(FileChannel.MapMode.READ_ONLY, at, Math.min((long) SEGMENT, size - at)).order(ByteOrder.LITTLE_ENDIAN))
            }
            part.segments = segments.toArray(new ByteBuffer[0])
            ByteBuffer head = segments.get(0)
            byte[] magic = new byte[8]
            for (int i = 0; i < 8; i++) magic[i] = head.get(i)
            part.blocks = head.getInt(12) & 0xFFFFFFFFL
            part.algorithms = head.getInt(24)
            boolean right = new String(magic, 'US-ASCII') == 'dedupflt' && head.getInt(8) == 1 && part.blocks > 0L
            if (!right || size != HEADER + BLOCK * part.blocks + CHECKSUM) throw new IOException('a part of the digest filter has another version')
            return part
        } finally {
            channel.close()
        }
    }
}

/** Looks up each response that was just fetched, and makes a revisit of what is stored already. */
@CompileStatic
@POJO
class DedupLookup extends Processor {
    private final DedupClient client

    DedupLookup(DedupClient client) { this.client = client }

    @Override
    protected boolean shouldProcess(CrawlURI curi) {
        if (!curi.is2XXSuccess() || !curi.isHttpTransaction() || curi.isRevisit()) return false
        if (curi.getFetchType() === CrawlURI.FetchType.HTTP_POST) return false    // another may be answered the same URL
        return curi.getContentDigest() != null && curi.getContentLength() > 0L
    }

    /** Whether Heritrix has fetched a part of a response, by the annotations for which its writer states WARC-Truncated. Such a record is no original. */
    private static boolean isTruncated(CrawlURI curi) {
        Collection<String> annotations = curi.getAnnotations()
        return annotations.contains(CoreAttributeConstants.LENGTH_TRUNC) || annotations.contains(CoreAttributeConstants.TIMER_TRUNC) ||
            annotations.contains(CoreAttributeConstants.HEADER_TRUNC)
    }

    @Override
    protected void innerProcess(CrawlURI curi) {
        if (isTruncated(curi)) {                       // stored, and not reported, as nothing asks for its history of digests
            client.truncated.incrementAndGet()
            return
        }
        String digest = curi.getContentDigestSchemeString()
        Original original = client.original(curi, digest)
        if (original == null) return                   // nobody knows: stored, and not reported
        if (!original.exists()) {
            curi.getContentDigestHistory()             // makes the writer note there what it wrote; DedupStore reads it
            return
        }
        IdenticalPayloadDigestRevisit revisit = new IdenticalPayloadDigestRevisit(digest)
        revisit.setRefersToTargetURI(original.url)
        revisit.setRefersToDate(original.date)
        if (original.id != null && !original.id.isEmpty()) revisit.setRefersToRecordID(original.id)
        curi.setRevisitProfile(revisit)
        curi.getAnnotations().add('Revisit:IdenticalPayloadDigest')
        curi.addExtraInfo('RevisitProfile', revisit.getProfileName())
        curi.addExtraInfo('RevisitRefersToURI', revisit.getRefersToTargetURI())
        curi.addExtraInfo('RevisitRefersToDate', revisit.getRefersToDate())
    }

    /** What `shouldProcessRule` leaves out is counted, so that nobody takes the duplicates for those of all responses. */
    @Override
    protected void innerRejectProcess(CrawlURI curi) {
        if (shouldProcess(curi) && !isTruncated(curi)) client.leftOut.incrementAndGet()
    }

    /** Count a response that would have come here if this stood in its place. */
    void countUnasked(CrawlURI curi) {
        if (!shouldProcess(curi) || isTruncated(curi)) return
        boolean left = getShouldProcessRule().decisionFor(curi) === DecideResult.REJECT
        AtomicLong count = left ? client.leftOut : client.notLookedUp
        count.incrementAndGet()
    }

    @Override
    String report() { super.report() + '  ' + client.counts() + '\n' }
}

/**
 * Asks for a URL only on the condition that it has changed, if the server knows what was seen last of it. FetchHTTP sends
 * what it finds in the history of fetches, so this fills the history.
 */
@CompileStatic
@POJO
class DedupConditions extends Processor {
    /** Under which the server's answer about the last capture is in the data of a URL while it is fetched. */
    static final String LAST = 'dedup-last'
    private final DedupClient client
    private final Pattern inFull                       // media types; null: none

    DedupConditions(DedupClient client, Pattern inFull) {
        this.client = client
        this.inFull = inFull
    }

    /** Heritrix takes a robots.txt that was answered 304 for one that allows everything. */
    @Override
    protected boolean shouldProcess(CrawlURI curi) {
        String scheme = curi.getUURI().getScheme()
        if (!'http'.equals(scheme) && !'https'.equals(scheme)) return false
        if (curi.getFetchType() === CrawlURI.FetchType.HTTP_POST || curi.isPrerequisite()) return false
        return !'/robots.txt'.equals(curi.getUURI().getPath())
    }

    @Override
    protected void innerProcess(CrawlURI curi) {
        forget(curi)
        if (DedupNotModified.isDistrusted(curi.getURI())) return
        String answer = client.last(curi.getURI())
        if (answer == null) return
        Original last = Original.read(answer)
        if (last.mime == null || (inFull != null && inFull.matcher(last.mime).find())) return
        HashMap<String, Object> before = new HashMap<String, Object>()
        before.put(RecrawlAttributeConstants.A_STATUS, Integer.valueOf(200))
        before.put(RecrawlAttributeConstants.A_ETAG_HEADER, last.etag)
        before.put(RecrawlAttributeConstants.A_LAST_MODIFIED_HEADER, last.modified)
        if (last.size != null) before.put(RecrawlAttributeConstants.A_REFERENCE_LENGTH, Long.valueOf(last.size))
        HashMap<String, Object>[] history = new HashMap[2]
        Arrays.fill(history, 0, 1, before)
        curi.setFetchHistory(history)
        curi.getData().put(LAST, answer)
    }

    /** Leave nothing from which a later fetch of the URL would make conditions; returns what was said of its last capture. */
    static Original forget(CrawlURI curi) {
        Object answer = curi.getData().remove(LAST)
        if (answer == null) return Original.NONE
        curi.getData().remove(RecrawlAttributeConstants.A_FETCH_HISTORY)
        return Original.read(String.valueOf(answer))
    }
}

/** A revisit of a payload that the server says is still the current one. */
@CompileStatic
@POJO
class NotModifiedRevisit extends ServerNotModifiedRevisit {
    final String url, mime
    final long size                                    // of the payload that was not fetched, -1 not known

    NotModifiedRevisit(Original last, String etag, String modified) {
        url = last.url
        mime = last.mime
        size = last.size == null ? -1L : Long.parseLong(last.size)
        setRefersToDate(last.date)
        if (last.id != null) setRefersToRecordID(last.id)
        setPayloadDigest(last.digest)
        setETag(etag)
        setLastModified(modified)
    }

    /** Heritrix leaves the URL out, without which pywb finds no original. */
    @Override
    Map<String, String> getWarcHeaders() {
        Map<String, String> headers = super.getWarcHeaders()
        headers.put('WARC-Refers-To-Target-URI', url)
        return headers
    }
}

/** Makes revisits of answers 304, of those that were asked for and that do not contradict what was asked. */
@CompileStatic
@POJO
class DedupNotModified extends Processor {
    private static final int LONGEST_REQUEST = 1 << 16                      // bytes
    private static final Set<String> DISTRUSTED = ConcurrentHashMap.newKeySet()   // URLs that are fetched in full, once more
    private final DedupClient client

    DedupNotModified(DedupClient client) { this.client = client }

    static boolean isDistrusted(String url) { DISTRUSTED.remove(url) }

    static boolean isOurs(CrawlURI curi) {
        return curi.getRevisitProfile() instanceof NotModifiedRevisit || curi.getAnnotations().contains('Revisit:IdenticalPayloadDigest')
    }

    @Override
    protected boolean shouldProcess(CrawlURI curi) { curi.getData().containsKey(DedupConditions.LAST) }

    @Override
    protected void innerProcess(CrawlURI curi) {
        Original last = DedupConditions.forget(curi)
        if (curi.getFetchStatus() != 304) return
        String asked = last.etag, since = last.modified
        if (!wasAsked(curi, 'If-None-Match', asked) && !wasAsked(curi, 'If-Modified-Since', since)) return
        String etag = curi.getHttpResponseHeader('ETag'), modified = curi.getHttpResponseHeader('Last-Modified')
        if (contradicts(etag, modified, asked, since)) {
            // Fetched again, in full: the current payload is one that nobody here has seen.
            DISTRUSTED.add(curi.getURI())
            curi.getAnnotations().add('dedup:other-validators')
            curi.setFetchStatus(FetchStatusCodes.S_DEFERRED)
            return
        }
        NotModifiedRevisit revisit = new NotModifiedRevisit(last, etag == null ? asked : etag, modified == null ? since : modified)
        curi.setRevisitProfile(revisit)
        curi.getAnnotations().add('duplicate:server-not-modified')           // as Heritrix's own FetchHistoryProcessor does
        curi.addExtraInfo('RevisitProfile', revisit.getProfileName())
        curi.addExtraInfo('RevisitRefersToURI', revisit.url)
        curi.addExtraInfo('RevisitRefersToDate', revisit.getRefersToDate())
        client.notModified.incrementAndGet()
        if (revisit.size > 0) client.notFetched.addAndGet(revisit.size)
    }

    /** Whether a 304 names another state than was asked for; entity tags are compared weakly (RFC 9110 section 8.8.3.2). */
    private static boolean contradicts(String etag, String modified, String asked, String since) {
        if (etag != null && asked != null) return !opaque(etag).equals(opaque(asked))
        return modified != null && since != null && !modified.equals(since)
    }

    private static String opaque(String etag) { etag.startsWith('W/') ? etag.substring(2) : etag }

    /** Whether FetchHTTP did send a condition: its settings may forbid it. */
    private static boolean wasAsked(CrawlURI curi, String name, String value) {
        if (value == null) return false
        InputStream sent = curi.getRecorder().getRecordedOutput().getReplayInputStream()
        try {
            return new String(sent.readNBytes(LONGEST_REQUEST), 'ISO-8859-1').contains(name + ': ' + value + '\r\n')
        } finally {
            sent.close()
        }
    }
}

/**
 * Reports each response that was looked up, was not found, and is in a WARC file now; also revisits if URLs are asked for on
 * conditions: what a URL answered last must be known.
 */
@CompileStatic
@POJO
class DedupStore extends Processor {
    private final DedupClient client

    DedupStore(DedupClient client) { this.client = client }

    @Override
    protected boolean shouldProcess(CrawlURI curi) {
        if (curi.isRevisit()) return client.conditional && DedupNotModified.isOurs(curi)
        return curi.hasContentDigestHistory() || client.unusedLookup != null
    }

    /** What must be known of a response to ask for it on conditions later. */
    private static void putValidators(Row capture, CrawlURI curi) {
        capture.put('etag', curi.getHttpResponseHeader('ETag')).put('last_modified', curi.getHttpResponseHeader('Last-Modified'))
    }

    /** The last that was seen of a URL is this revisit now. */
    private void reportRevisit(CrawlURI curi) {
        Row capture = new Row()
        capture.put('url', curi.getURI()).put('date', ArchiveUtils.getLog14Date(curi.getFetchBeginTime()))
        capture.put('status', curi.getFetchStatus())
        String digest = curi.getContentDigestSchemeString()
        if (curi.getRevisitProfile() instanceof NotModifiedRevisit) {
            NotModifiedRevisit revisit = (NotModifiedRevisit) curi.getRevisitProfile()
            digest = revisit.getPayloadDigest()
            capture.put('revisit', 'server-not-modified').put('etag', revisit.getETag()).put('last_modified', revisit.getLastModified())
            capture.put('mime', revisit.mime)
            if (revisit.size >= 0L) capture.put('size', revisit.size)
        } else {
            capture.put('mime', curi.getContentType()).put('revisit', 'identical-payload-digest').put('size', curi.getContentLength())
            putValidators(capture, curi)
        }
        client.report(digest, null, capture.put('digest', digest))
    }

    @Override
    protected void innerProcess(CrawlURI curi) {
        if (curi.isRevisit()) {
            reportRevisit(curi)
            return
        }
        client.unusedLookup?.countUnasked(curi)
        if (!curi.hasContentDigestHistory()) return
        Map<String, Object> written = curi.getContentDigestHistory()
        if (written.isEmpty()) return                  // the writer left it out
        Row capture = new Row()
        String digest = curi.getContentDigestSchemeString()
        capture.put('digest', digest).put('url', written.get('original-url')).put('date', written.get('content-written-date'))
        capture.put('record_id', written.get('warc-record-id')).put('container', written.get('warc-filename'))
        capture.put('offset', written.get('warc-file-offset')).put('mime', curi.getContentType())
        capture.put('status', curi.getFetchStatus()).put('size', curi.getContentLength()).put('covers', DedupClient.coversOf(curi))
        putValidators(capture, curi)
        client.report(digest, curi.getContentDigest(), capture)
    }

    /** A crawl that continues from a checkpoint does not write these records again, so they are reported now. */
    @Override
    void startCheckpoint(Checkpoint checkpoint) { client.flushNow() }
}
