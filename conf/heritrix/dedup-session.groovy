// dedup-session: what all threads of a crawl share to ask dedupindex and to report to it.
//
// Settings are in dedup-beans.xml. Whatever goes wrong, the response is stored in full: no answer of the server, or
// the lack of one, can keep Heritrix from storing what was not found.
//
// Heritrix compiles dedup-lookup and dedup-store in each of its threads, one thread after the other; so those are a few
// lines each, and this file is compiled once, for the thread that comes first.

import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicLong
import java.util.logging.Level
import java.util.logging.Logger
import org.archive.crawler.event.CrawlStateEvent
import org.archive.modules.revisit.IdenticalPayloadDigestRevisit
import org.springframework.context.ApplicationListener

/** The server refused this one request; that says nothing about the next. */
class Refused extends IOException {
    static final List<Integer> EACH = [400, 413, 414], OFTEN = [409, 429]   // the latter are said once
    final int status
    Refused(int status, String message) { super(message); this.status = status }
}

/** What all threads of a crawl share: whether the server answers, and that the crawl is begun and ended once. */
class DedupSession implements ApplicationListener<CrawlStateEvent> {
    static final int LOOKUP_TIMEOUT = 2000, WRITE_TIMEOUT = 5000      // milliseconds
    static final String LATER = '; index the WARCs afterwards (bin/index --add), or later crawls do not find what is in them'
    static final int ATTEMPTS = 2, LONGEST_END = 30                   // to end the crawl; seconds
    final Logger log = Logger.getLogger('org.archive.dedupindex')
    final AtomicLong asked = new AtomicLong(), found = new AtomicLong(), reported = new AtomicLong()
    final AtomicLong notAsked = new AtomicLong(), notReported = new AtomicLong()
    final String server, token, crawl, question
    final Properties settings
    // While the server is away it is probed, with the numbers of all our clients: see docs/crawlers.md. Milliseconds.
    static final int FAILURES = 5, SHARE = 10
    static final long SHORTEST = 1000, LOST = 60_000
    final String covers
    final long quiet                                   // the longest pause between two probes
    private final Set<Integer> mentioned = ConcurrentHashMap.newKeySet()
    private final Object beginning = new Object()
    private volatile boolean begun
    private volatile int failures                      // in a row
    private long since, until                          // the first of them, and when the next probe may be sent

    /** Make the one session of the crawl that `context` runs; dedup-lookup does, for the first thread that comes. */
    static void start(context) {
        def session = new DedupSession(context)
        context.autowireCapableBeanFactory.registerSingleton('dedupSession', session)
        context.addApplicationListener(session)
    }

    private DedupSession(context) {
        settings = context.getBean('dedup')
        server = settings.getProperty('server').trim().replaceAll('/+$', '')
        token = settings.getProperty('token', '').trim()
        quiet = 1000L * (settings.getProperty('quietSeconds', '30').trim() as long)
        // A launch has its own id, so no two launches of a job are taken for one crawl.
        crawl = (context.getBean('metadata').jobName + '-' + context.currentLaunchId).replaceAll('[^A-Za-z0-9._-]', '_')
        def said = settings.getProperty('digestCovers', 'auto').trim()
        // FetchHTTP takes its digest with the chunk framing of the transfer, FetchHTTP2 without.
        covers = said != 'auto' ? said : isFetchHttp2(context) ? 'entity' : 'stored'
        question = '&crawl=' + crawl + only('strategy', 'searchStrategy') + only('max_age', 'maxAge')
    }

    private static boolean isFetchHttp2(context) {
        return context.beanDefinitionNames.any { context.getType(it)?.simpleName == 'FetchHTTP2' }
    }

    private String only(String parameter, String setting) {
        def value = settings.getProperty(setting, '').trim()
        return value ? '&' + parameter + '=' + URLEncoder.encode(value, 'UTF-8') : ''
    }

    /**
     * What the digest of a response is taken of, where that is not what the crawl says of all: of a transfer that was
     * not chunked the body as stored and the entity are the same.
     */
    static String coversOf(curi) {
        return curi.getHttpResponseHeader('Transfer-Encoding') ? null : 'both'
    }

    /** Look a response up that was just fetched, and make a revisit of what is stored already. */
    void lookUp(curi) {
        if (!curi.is2XXSuccess() || !curi.isHttpTransaction() || curi.isRevisit()) return
        if (curi.getFetchType()?.name() == 'HTTP_POST') return     // another may be answered the same URL
        String digest = curi.getContentDigestSchemeString()
        if (digest == null || curi.getContentLength() <= 0L) return
        def original = original(curi.getURI(), digest, [
            covers: coversOf(curi), mime: curi.getContentType(),
            size: curi.getContentSize(),               // with headers, as in Heritrix's own reports
        ])
        if (original == null) return                   // nobody knows: stored, and not reported
        if (original.isEmpty()) {
            curi.getContentDigestHistory()             // makes the writer note there what it wrote; `store` reads it
            return
        }
        def revisit = new IdenticalPayloadDigestRevisit(digest)
        revisit.setRefersToTargetURI(original['WARC-Refers-To-Target-URI'] as String)
        revisit.setRefersToDate(original['WARC-Refers-To-Date'] as String)
        String id = original['WARC-Refers-To']
        if (id) revisit.setRefersToRecordID(id.replaceAll('^<|>$', ''))
        curi.setRevisitProfile(revisit)
        curi.getAnnotations().add('Revisit:IdenticalPayloadDigest')
        curi.addExtraInfo('RevisitProfile', revisit.getProfileName())
        curi.addExtraInfo('RevisitRefersToURI', revisit.getRefersToTargetURI())
        curi.addExtraInfo('RevisitRefersToDate', revisit.getRefersToDate())
    }

    /** Report a response that was looked up, was not found, and is in a WARC file now. */
    void store(curi) {
        if (curi.isRevisit() || !curi.hasContentDigestHistory()) return
        def written = curi.getContentDigestHistory()
        if (written.isEmpty()) return                  // the writer left it out
        report([
            digest: curi.getContentDigestSchemeString(), url: written['original-url'], date: written['content-written-date'],
            record_id: written['warc-record-id'], container: written['warc-filename'], offset: written['warc-file-offset'],
            mime: curi.getContentType(), status: curi.getFetchStatus(), size: curi.getContentLength(), covers: coversOf(curi),
        ])
    }

    /**
     * The original of a payload as the headers of its revisit, empty if there is none, null if nobody knows.
     * `more` says of the response what policies and statistics of the server ask for.
     */
    Map<String, String> original(String url, String digest, Map more) {
        def answer = attempt('not looked up') {
            if (!begun) begin()
            request('GET', '/lookup?digest=' + digest + '&url=' + URLEncoder.encode(url, 'UTF-8') + said(more) + question, null)
        }
        if (answer == null) {
            notAsked.incrementAndGet()
            return null
        }
        asked.incrementAndGet()
        if (answer) found.incrementAndGet()
        return answer
    }

    private static String said(Map fields) {
        fields.findAll { it.value != null }.collect { '&' + it.key + '=' + URLEncoder.encode(it.value as String, 'UTF-8') }.join('')
    }

    /** Tell the server what was written. */
    void report(Map fields) {
        def answer = attempt('not reported') { request('POST', '/captures?crawl=' + crawl, fields) }
        (answer == null ? notReported : reported).incrementAndGet()
    }

    /** A line of the log, under a name of ours: Java would take the one of Groovy's dispatcher. */
    private void say(Level level, String message) {
        log.logp(level, 'dedupindex.DedupSession', 'say', message)
    }

    private void begin() {
        int before = failures
        synchronized (beginning) {
            if (begun) return
            if (failures > before) throw new IOException('another thread has just failed to begin the crawl')
            request('POST', '/crawls', [name: crawl, seen_by: settings.getProperty('seenBy', 'own').trim(), digest_covers: covers])
            begun = true
        }
        say(Level.INFO, 'dedup: crawl ' + crawl + ' is begun at ' + server + ', digests are of the ' + covers + ' body')
    }

    /** Do something with the server unless it is away; null if that was not possible. */
    private attempt(String otherwise, Closure what) {
        if (!mayTry()) return null
        try {
            def answer = what()
            if (failures) answered()
            return answer
        } catch (Refused e) {
            if (failures) answered()
            boolean often = e.status in Refused.OFTEN
            if (!often || mentioned.add(e.status)) say(Level.WARNING, 'dedup: ' + otherwise + ': ' + e.message + (often ? '; further answers ' + e.status + ' are only counted' : ''))
        } catch (Exception e) {
            failed(otherwise, e)
        }
        return null
    }

    /** Whether to ask now. After five failures in a row one thread probes the server, and all others go on without it. */
    private boolean mayTry() {
        if (failures < FAILURES) return true
        synchronized (this) {
            long now = milliseconds()
            if (now < until) return false
            until = now + LOST                         // nobody else, until this probe has ended
            return true
        }
    }

    /** The pause grows with the outage, but not as long as nobody listens: such a probe costs nothing. */
    private synchronized void failed(String otherwise, Exception e) {
        long now = milliseconds()
        if (failures == 0) {
            since = now
            say(Level.SEVERE, 'dedup: ' + otherwise + '; all is stored until the server answers again, which is tried after 1 to ' + quiet.intdiv(1000) + ' s: ' + server + ': ' + e)
        }
        failures = failures + 1
        long pause = e instanceof ConnectException ? SHORTEST : Math.max(SHORTEST, (now - since).intdiv(SHARE))
        until = now + Math.min(pause, quiet)
    }

    private synchronized void answered() {
        if (failures) say(Level.INFO, 'dedup: ' + server + ' answers again; not looked up until now: ' + notAsked)
        failures = 0
    }

    private static long milliseconds() { System.nanoTime().intdiv(1_000_000L) }

    /** The header lines of an answer, empty if it has none; raises IOException. */
    private Map<String, String> request(String method, String path, Map fields) {
        def connection = new URL(server + path).openConnection()
        connection.requestMethod = method
        connection.connectTimeout = LOOKUP_TIMEOUT
        connection.readTimeout = fields == null ? LOOKUP_TIMEOUT : WRITE_TIMEOUT
        connection.useCaches = false
        connection.setRequestProperty('Accept', 'text/plain')
        if (token) connection.setRequestProperty('Authorization', 'Bearer ' + token)
        if (fields != null) {
            connection.doOutput = true
            connection.setRequestProperty('Content-Type', 'application/x-www-form-urlencoded')
            def body = fields.findAll { it.value != null }.collect { it.key + '=' + URLEncoder.encode(it.value as String, 'UTF-8') }
            connection.outputStream.withCloseable { it.write(body.join('&').getBytes('US-ASCII')) }
        }
        int code = connection.responseCode
        if (code == 200 || code == 204) {
            def text = connection.inputStream.getText('UTF-8')
            return method == 'GET' && code == 200 ? headers(text) : [:]
        }
        def message = method + ' ' + path.take(200) + ' was answered ' + code + ' ' + (connection.errorStream?.getText('UTF-8')?.take(300) ?: '')
        if (code in Refused.EACH + Refused.OFTEN) throw new Refused(code, message)
        if (code == 404) begun = false                 // the server has another index now, which does not know this crawl
        throw new IOException(message)
    }

    private static Map<String, String> headers(String text) {
        def read = text.readLines().findAll { it.contains(': ') }.collectEntries { it.split(': ', 2) as List }
        if (!read['WARC-Refers-To-Target-URI'] || !read['WARC-Refers-To-Date']) throw new IOException('no original in the answer ' + text.take(200))
        return read
    }

    /** At the end of the crawl: what it stored answers everybody from now on, or is taken back. */
    void onApplicationEvent(CrawlStateEvent event) {
        if (event.state.name() != 'FINISHED') return
        // Heritrix may exit as soon as the crawl is finished, without waiting for us; this makes it wait.
        def ended = new CountDownLatch(1)
        def hook = new Thread({ ended.await(LONGEST_END, TimeUnit.SECONDS) } as Runnable)
        Runtime.runtime.addShutdownHook(hook)
        try {
            end(event.message ?: '')
        } catch (Exception e) {                        // out of here it would stop the thread that ends the crawl
            say(Level.SEVERE, 'dedup: crawl ' + crawl + ' is still open: ' + e)
        } finally {
            ended.countDown()
            try {
                Runtime.runtime.removeShutdownHook(hook)
            } catch (IllegalStateException e) {        // Heritrix is exiting already
            }
        }
    }

    private void end(String reason) {
        def missed = (notAsked.get() ? '; not looked up ' + notAsked : '') + (notReported.get() ? '; not reported ' + notReported : '')
        say(Level.INFO, 'dedup: crawl ' + crawl + ': looked up ' + asked + ', of these duplicates ' + found + '; reported ' + reported + missed)
        if (!begun) {
            say(Level.SEVERE, 'dedup: crawl ' + crawl + ' was never begun at ' + server + missed + (missed ? LATER : ''))
            return
        }
        def cancelOn = settings.getProperty('cancelOn', '').trim()
        def step = '/crawls/' + crawl + (cancelOn && reason =~ cancelOn ? '/cancel' : '/commit')
        def said = [exit: reason, not_looked_up: notAsked, not_reported: notReported]
        for (int left = ATTEMPTS; left > 0; left--) {
            try {
                request('POST', step, said)
                say(Level.INFO, 'dedup: done: POST ' + step + (missed ? LATER : ''))
                return
            } catch (IOException e) {
                // Said at once: when Heritrix exits, its log is closed before we are done.
                if (e instanceof Refused && e.status == 429) sleep(1000)
                if (left == ATTEMPTS) say(Level.SEVERE, 'dedup: crawl ' + crawl + ' is still open: ' + e + '; if no line "done" follows, do it by hand: POST ' + server + step + ' not_looked_up=' + notAsked + '&not_reported=' + notReported + (missed ? LATER : ''))
            }
        }
    }
}
