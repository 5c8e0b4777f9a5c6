// dedup-lookup: asks dedupindex for each response, right after it was fetched, whether its payload is stored already.
//
// What it does is in dedup-session.groovy, beside this file, which is compiled once for all threads.

synchronized (context) {
    def beans = context.autowireCapableBeanFactory
    if (!beans.containsSingleton('dedupSession')) {
        def loader = new GroovyClassLoader(context.class.classLoader)
        loader.parseClass(new File(self.scriptSource.file.absoluteFile.parentFile, 'dedup-session.groovy'))
        loader.loadClass('DedupSession').start(context)
    }
    dedup = beans.getSingleton('dedupSession')         // without "def", so that process() sees it
}

void process(curi) { dedup.lookUp(curi) }
